"""The specs of real models, built without memory from the embedded configs."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from flexinfer.attention.spec import LayerSpec
from flexinfer.models.catalog import build_decoder

BF16_BYTES = 2


def specs_of(name: str) -> tuple[LayerSpec, ...]:
    """Build the model on the meta device and return its decoder's specs."""
    text = files("flexinfer.assets").joinpath("configs", f"{name}.json").read_text()
    config = AutoConfig.for_model(**json.loads(text)["config"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config.get_text_config())
    return build_decoder(model).specs


def kv_bytes(specs: tuple[LayerSpec, ...]) -> int:
    """Return the cache bytes of one token in bf16: K and V of every layer that owns them."""
    return sum(2 * s.kv_heads * s.head_dim * BF16_BYTES for s in specs if s.owns_kv)


@pytest.mark.parametrize(
    ("name", "layers", "heads", "kv_bytes_per_token"),
    [
        ("qwen3-4b", 36, (32, 8, 128), 147_456),
        ("llama-3.2-3b-instruct", 28, (24, 8, 128), 114_688),
        ("smollm2-135m-instruct", 30, (9, 3, 64), 23_040),
    ],
)
def test_models_of_one_regime(
    name: str, layers: int, heads: tuple[int, int, int], kv_bytes_per_token: int
) -> None:
    specs = specs_of(name)
    assert len(specs) == layers
    assert {(s.heads, s.kv_heads, s.head_dim) for s in specs} == {heads}
    assert {(s.window, s.scale) for s in specs} == {(None, heads[2] ** -0.5)}
    assert all(s.owns_kv for s in specs)
    assert kv_bytes(specs) == kv_bytes_per_token


def test_gemma_4_e2b() -> None:
    specs = specs_of("gemma-4-E2B-it")
    regimes = {(s.window, s.heads, s.kv_heads, s.head_dim, s.scale) for s in specs}
    assert regimes == {(512, 8, 1, 256, 1.0), (None, 8, 1, 512, 1.0)}
    assert [s.index for s in specs if s.window is None] == [4, 9, 14, 19, 24, 29, 34]
    assert {s.kv_layer for s in specs[15:] if s.window} == {13}
    assert {s.kv_layer for s in specs[15:] if s.window is None} == {14}
    assert all(s.owns_kv for s in specs[:15])
    assert kv_bytes(specs) == 18_432


def test_gemma_4_e4b() -> None:
    specs = specs_of("gemma-4-E4B-it")
    assert len(specs) == 42
    assert sum(s.owns_kv for s in specs) == 24
    assert {s.kv_heads for s in specs} == {2}
