"""Which models are taken and which are refused, by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from flexinfer.errors import UsageError
from flexinfer.models.catalog import build_decoder
from flexinfer.models.gemma4_build import kv_layers
from flexinfer.models.source import ModuleSource
from tests.support.dense import run_packed
from tests.support.oracle import hf_logits
from tests.support.prompts import assert_same, prompts_of
from tests.support.tiny import FULL, SLIDING, tiny_gemma4, tiny_llama


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16))


def moe() -> PreTrainedModel:
    extra = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    return tiny_gemma4(enable_moe_block=True, **extra)


def llama_rope(**params: object) -> Callable[[], PreTrainedModel]:
    return lambda: tiny_llama(rope_parameters={"rope_theta": 1e4, "factor": 2.0, **params})


def spread() -> PreTrainedModel:
    model = tiny_llama(tie_word_embeddings=False)
    model.lm_head.to("meta")
    return model


def quantised() -> PreTrainedModel:
    model = tiny_llama()
    weight = model.model.layers[0].mlp.down_proj.weight
    weight.requires_grad_(False)
    weight.data = weight.data.to(torch.int8)
    return model


K_EQ_V = {
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}
REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "unknown": (gpt2, "model type 'gpt2' is not supported"),
    "moe": (moe, "mixture-of-experts Gemma-4"),
    "bidirectional": (
        lambda: tiny_gemma4(use_bidirectional_attention="all"),
        "use_bidirectional_attention 'all'",
    ),
    "activation": (lambda: tiny_llama(hidden_act="relu2"), "activation 'relu2'"),
    "dynamic rope": (llama_rope(rope_type="dynamic"), "rope type 'dynamic'"),
    "longrope": (llama_rope(rope_type="longrope", **LONG), "rope type 'longrope'"),
    "partial rope": (
        llama_rope(rope_type="linear", partial_rotary_factor=0.5),
        "turns 8 of 16 dimensions",
    ),
    "two devices": (spread, "spread over cpu, meta"),
    "quantised": (quantised, "layers.0.mlp.down_proj.weight is torch.int8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name_in_one_line(case: str) -> None:
    build, words = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        build_decoder(build())
    assert words in caught.value.message
    assert "\n" not in caught.value.message + (caught.value.hint or "")


def test_unknown_types_are_told_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        build_decoder(gpt2())
    assert caught.value.hint == (
        "supported: gemma4, gemma4_text, gemma4_unified, gemma4_unified_text, llama, qwen3"
    )


def test_sharing_needs_an_owner_of_the_same_type() -> None:
    assert kv_layers((SLIDING, FULL, SLIDING, SLIDING, FULL), 2) == (0, 1, 2, 2, 1)
    with pytest.raises(UsageError, match="leaves no full_attention layer"):
        kv_layers((SLIDING, SLIDING, FULL), 1)
    with pytest.raises(UsageError, match="leaves no full_attention layer"):
        kv_layers((SLIDING, FULL), 2)


def test_a_multimodal_gemma_is_read_at_its_language_model() -> None:
    text = tiny_gemma4()
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = Gemma4Config(
        text_config=text.config.to_dict(),
        vision_config=tower | {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16},
        audio_config=None,
        image_token_id=500, video_token_id=501, audio_token_id=502, boi_token_id=503,
        eoi_token_id=504, boa_token_id=505, eoa_token_index=506, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma4ForConditionalGeneration(config).float().eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    prompts = [[token % 490 for token in prompt] for prompt in prompts_of(20, 9)]
    found = run_packed(build_decoder(model), prompts)
    assert_same(found, [hf_logits(model, prompt) for prompt in prompts])
    assert_same(found, [hf_logits(text, prompt) for prompt in prompts])


def test_a_unified_gemma_is_a_gemma_without_per_layer_inputs() -> None:
    unified = pytest.importorskip("transformers.models.gemma4_unified")
    text = tiny_gemma4(hidden_size_per_layer_input=0, num_kv_shared_layers=0, **K_EQ_V)
    values = text.config.to_dict() | {"model_type": "gemma4_unified_text"}
    config = unified.Gemma4UnifiedTextConfig(**values, attn_implementation="eager")
    model = unified.Gemma4UnifiedForCausalLM(config).float().eval()
    model.load_state_dict(text.state_dict())
    prompts = prompts_of(20, 9)
    found = run_packed(build_decoder(model), prompts)
    assert_same(found, [hf_logits(model, prompt) for prompt in prompts])
    assert_same(found, run_packed(build_decoder(text), prompts))


def test_a_tied_head_may_be_missing() -> None:
    model = tiny_llama()
    expected = hf_logits(model, [5, 6, 7])
    del model.lm_head
    assert_same(run_packed(build_decoder(model), [[5, 6, 7]]), [expected])
    model.config.tie_word_embeddings = False
    with pytest.raises(UsageError, match=r"no tensor 'model\.lm_head\.weight'"):
        build_decoder(model)


def test_layer_types_that_are_not_known_are_refused() -> None:
    config = tiny_llama().config.to_dict() | {"layer_types": ["chunked_attention"] * 4}
    model = tiny_llama()
    shell = SimpleNamespace(
        config=SimpleNamespace(to_dict=lambda: config),
        named_parameters=model.named_parameters,
        named_buffers=model.named_buffers,
        named_modules=model.named_modules,
        parameters=model.parameters,
    )
    with pytest.raises(UsageError, match="layer type 'chunked_attention'"):
        build_decoder(shell)


def test_a_source_shares_storage_and_asks_for_no_gradient() -> None:
    model = tiny_llama()
    tensor = ModuleSource(model, "model.").tensor("norm.weight")
    assert tensor.data_ptr() == model.model.norm.weight.data_ptr()
    assert not tensor.requires_grad
