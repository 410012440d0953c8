"""Walker = Hugging Face: logits of packed prompts around window edges, chunked in any way."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.models import gemma4_build
from flexinfer.models.catalog import build_decoder
from flexinfer.models.rope import rope_kind
from flexinfer.models.source import ModuleSource
from tests.support.dense import DenseCache, run_packed
from tests.support.oracle import hf_logits
from tests.support.prompts import assert_same, prompts_of
from tests.support.tiny import FAMILIES, FULL, SLIDING, tiny_gemma4, tiny_llama, tiny_qwen3

LENGTHS = (30, 5, 17, 1, 7, 8, 9, 15, 16)
"""Prompt lengths around the window of 8 and its double."""


def bent(build: Callable[..., PreTrainedModel], **overrides: object) -> PreTrainedModel:
    """Build with biases that are not zero, so that a forgotten one shows."""
    model = build(**overrides)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3, generator=generator)
    return model


def loaded_as(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast what a checkpoint holds, as loading in `dtype` does; rope frequencies stay fp32."""
    state = model.state_dict()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in state:
            tensor.data = tensor.data.to(dtype)
    return model


def rope(kind: str, **extra: object) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **extra}


yarn = rope("yarn", original_max_position_embeddings=16)
wide = {"num_key_value_heads": 4, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
VARIANTS = {
    "qwen3": tiny_qwen3,
    "qwen3-untied-bias": functools.partial(
        bent, tiny_qwen3, attention_bias=True, tie_word_embeddings=False
    ),
    "qwen3-windows": functools.partial(
        tiny_qwen3, use_sliding_window=True, sliding_window=8, max_window_layers=2
    ),
    "llama-llama3": tiny_llama,
    "llama-default": functools.partial(
        tiny_llama, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    ),
    "llama-linear": functools.partial(tiny_llama, rope_parameters=rope("linear")),
    "llama-yarn": functools.partial(tiny_llama, rope_parameters=yarn),
    "llama-untied-biases": functools.partial(
        bent, tiny_llama, attention_bias=True, mlp_bias=True, tie_word_embeddings=False
    ),
    "llama-one-kv-head-gelu": functools.partial(
        tiny_llama, num_key_value_heads=1, hidden_act="gelu"
    ),
    "gemma4-shared-4": tiny_gemma4,
    "gemma4-shared-2": functools.partial(tiny_gemma4, num_kv_shared_layers=2),
    "gemma4-shared-0": functools.partial(
        tiny_gemma4, num_kv_shared_layers=0, initializer_range=0.2
    ),
    "gemma4-no-per-layer-input": functools.partial(
        tiny_gemma4, hidden_size_per_layer_input=0, num_kv_shared_layers=0
    ),
    "gemma4-k-eq-v": functools.partial(tiny_gemma4, num_kv_shared_layers=0, **wide),
    "gemma4-k-eq-v-shared": functools.partial(tiny_gemma4, **wide),
    "gemma4-untied-bias-no-softcap": functools.partial(
        bent, tiny_gemma4, attention_bias=True, final_logit_softcapping=None,
        tie_word_embeddings=False, use_double_wide_mlp=False,
    ),
    "gemma4-all-full": functools.partial(tiny_gemma4, layer_types=[FULL] * 8),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_prompts_give_the_oracles_logits(variant: str) -> None:
    model = VARIANTS[variant]()
    prompts = prompts_of(*LENGTHS)
    found = run_packed(build_decoder(model), prompts)
    assert_same(found, [hf_logits(model, prompt) for prompt in prompts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_prompt_alone_gives_the_oracles_bits(variant: str, dtype: torch.dtype) -> None:
    model = loaded_as(VARIANTS[variant](), dtype)
    (prompt,) = prompts_of(30)
    (found,) = run_packed(build_decoder(model), [prompt])
    assert found.dtype == dtype
    assert torch.equal(found.float(), hf_logits(model, prompt))


@pytest.mark.parametrize("family", FAMILIES)
def test_rope_follows_a_module_that_was_cast_whole(family: str) -> None:
    model = FAMILIES[family]().to(torch.bfloat16)
    (prompt,) = prompts_of(30)
    (found,) = run_packed(build_decoder(model), [prompt])
    assert torch.equal(found.float(), hf_logits(model, prompt))
    kept = loaded_as(FAMILIES[family](), torch.bfloat16)
    assert not torch.equal(hf_logits(kept, prompt), hf_logits(model, prompt))


@pytest.mark.parametrize("chunk", [1, 7, 8, 9])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_of_any_size_give_the_oracles_logits(family: str, chunk: int) -> None:
    model = FAMILIES[family]()
    prompts = prompts_of(*LENGTHS)
    found = run_packed(build_decoder(model), prompts, chunk=chunk)
    assert_same(found, [hf_logits(model, prompt) for prompt in prompts])


@pytest.mark.parametrize("family", FAMILIES)
def test_order_of_packing_does_not_matter(family: str) -> None:
    decoder = build_decoder(FAMILIES[family]())
    prompts = prompts_of(*LENGTHS)
    turned = run_packed(decoder, prompts[::-1], chunk=6)
    assert_same(turned[::-1], run_packed(decoder, prompts))


def test_caches_are_those_of_the_layers_that_own_kv() -> None:
    model, cache = tiny_gemma4(), DenseCache()
    decoder = build_decoder(model)
    run_packed(decoder, prompts_of(12), cache=cache)
    assert [spec.kv_layer for spec in decoder.specs] == [0, 1, 2, 3, 3, 2, 3, 2]
    assert {layer for layer, _ in cache.store} == {0, 1, 2, 3}
    assert [spec.window for spec in decoder.specs] == [
        8 if kind == SLIDING else None for kind in model.config.layer_types
    ]


def test_projections_that_a_shared_layer_only_defines_are_not_read() -> None:
    model, (prompt,) = tiny_gemma4(), prompts_of(20)
    expected = hf_logits(model, prompt)
    for layer in model.model.layers[4:]:
        head_dim = layer.self_attn.head_dim
        layer.self_attn.k_norm = torch.nn.Identity()
        for name in ("k_proj", "v_proj"):
            setattr(layer.self_attn, name, torch.nn.Linear(64, 2 * head_dim, bias=False))
    decoder = build_decoder(model)
    assert torch.equal(run_packed(decoder, [prompt])[0], expected)
    assert [len(layer.weights.projections.widths) for layer in decoder.layers] == [3] * 4 + [1] * 4


def test_specs_read_heads_from_the_parameters() -> None:
    specs = build_decoder(VARIANTS["gemma4-k-eq-v"]()).specs
    assert {(s.head_dim, s.kv_heads, s.window) for s in specs} == {(16, 4, 8), (32, 1, None)}
    assert {s.scale for s in specs} == {1.0}
    assert build_decoder(tiny_llama()).specs[0].scale == 0.25


def test_each_layer_type_of_gemma_has_its_own_rope() -> None:
    model = tiny_gemma4()
    ropes = {FULL: yarn, SLIDING: rope("linear")}
    walker = gemma4_build.build(
        model.config.to_dict() | {"rope_parameters": ropes}, ModuleSource(model, "model.")
    )
    for layer, kind in zip(walker.layers, model.config.layer_types, strict=True):
        expected = rope_kind(ropes[kind], layer.spec.head_dim, 1024)
        assert torch.equal(walker.ends.inv_freqs[layer.rope], expected.inv_freq)
        assert walker.ends_shape.rope_factors[layer.rope] == expected.factor
    assert len(set(walker.ends_shape.rope_factors)) == 2
