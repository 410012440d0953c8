"""The shape of tiny-gemma4, its initial weights, and how its folder is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from flexinfer.assets.tiny_gemma4.tokenizer import (
    BOS,
    EOS_IDS,
    PAD,
    SPECIALS,
    VOCAB_SIZE,
    save_tokenizer,
)

SLIDING, FULL = "sliding_attention", "full_attention"
# Written by hand, not by save_pretrained, so that every supported transformers release reads it:
# older ones know `global_head_dim`, newer ones write `per_layer_config` in its place.
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "dtype": "bfloat16",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_kv_shared_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 16,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.05,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
    "tie_word_embeddings": True,
    "pad_token_id": SPECIALS.index(PAD),
    "bos_token_id": SPECIALS.index(BOS),
    "eos_token_id": EOS_IDS,
}
TOKEN_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id")


def build_model(seed: int) -> Gemma4ForCausalLM:
    """Make the untrained model in fp32; queries are scaled to head_dim^-0.5 as scores are not."""
    torch.manual_seed(seed)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**CONFIG, attn_implementation="sdpa")).float()
    for layer in model.model.layers:
        norm = layer.self_attn.q_norm.weight
        torch.nn.init.constant_(norm, norm.numel() ** -0.5)
    return model


def save_model(model: Gemma4ForCausalLM, folder: Path) -> None:
    """Write bf16 weights (tied head left out), both configs and the tokenizer into `folder`."""
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", CONFIG)
    tokens = {key: CONFIG[key] for key in TOKEN_KEYS}
    _write_json(folder / "generation_config.json", {"do_sample": False, **tokens})
    save_tokenizer(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
