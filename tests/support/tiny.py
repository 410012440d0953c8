"""Tiny random checkpoints of the three families, their logits far from flat (init std 0.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
SLIDING, FULL = "sliding_attention", "full_attention"


def tiny_qwen3(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Build Qwen3: 4 layers, hidden 64, 4 query and 2 kv heads of 16."""
    config = Qwen3Config(
        **COMMON
        | {"num_hidden_layers": 4, "tie_word_embeddings": True, "eos_token_id": 2}
        | overrides
    )
    return _build(Qwen3ForCausalLM, config, seed)


def tiny_llama(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Build Llama: as Qwen3, tied, llama3 rope scaling, two EOS ids."""
    rope = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    extra = {
        "num_hidden_layers": 4,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 3],
        "rope_parameters": rope,
    }
    return _build(LlamaForCausalLM, LlamaConfig(**COMMON | extra | overrides), seed)


def tiny_gemma4(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Build Gemma-4 text: 8 layers S S F S | S F S F, the last four sharing KV, window 8."""
    extra = {
        "num_hidden_layers": 8,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL, SLIDING, FULL],
        "num_kv_shared_layers": 4,
        "sliding_window": 8,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": overrides.get("vocab_size", VOCAB),
        "final_logit_softcapping": 30.0,
        "use_double_wide_mlp": True,
        "eos_token_id": [1, 2, 3],
    }
    return _build(Gemma4ForCausalLM, Gemma4TextConfig(**COMMON | extra | overrides), seed)


FAMILIES = {"qwen3": tiny_qwen3, "llama": tiny_llama, "gemma4": tiny_gemma4}


def _build(cls: type[PreTrainedModel], config: Any, seed: int) -> PreTrainedModel:
    """Instantiate `cls` in fp32, then perturb norms and scalars so that no factor is silent."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = cls(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            for name, buffer in model.named_buffers():
                if name.endswith("layer_scalar"):
                    buffer.copy_(torch.empty_like(buffer).uniform_(0.7, 1.1))
    return model


def save_tiny(family: str, folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny checkpoint of `family` to `folder` (no tokenizer) and return the folder."""
    FAMILIES[family](seed, **overrides).save_pretrained(folder)
    return folder
