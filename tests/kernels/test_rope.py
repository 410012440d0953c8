"""Rope tables and rotation are Hugging Face's, bit for bit; frequencies are the module's own."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.llama import modeling_llama

from flexinfer.kernels.rope import apply_rope, rope_tables
from flexinfer.models.rope import rope_kind
from tests.support.tiny import FULL, SLIDING, tiny_gemma4, tiny_llama

POSITIONS = torch.tensor([0, 1, 7, 8, 1000, 131_000])


def scaled(kind: str) -> dict[str, object]:
    """Return rope parameters of one kind."""
    params: dict[str, object] = {"rope_type": kind, "rope_theta": 5e5}
    if kind != "default":
        params["factor"] = 8.0
    if kind == "llama3":
        params |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("llama3", "yarn"):
        params["original_max_position_embeddings"] = 64
    return params


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_llama_tables(kind: str, dtype: torch.dtype) -> None:
    params = scaled(kind)
    own = tiny_llama(rope_parameters=params).model.rotary_emb
    found = rope_kind(params, 16, 1024)
    assert torch.equal(found.inv_freq, own.inv_freq)
    cos, sin = own(torch.zeros(1, dtype=dtype), POSITIONS[None])
    tables = rope_tables(POSITIONS, found.inv_freq, found.factor, dtype)
    assert torch.equal(tables.cos_TD, cos[0])
    assert torch.equal(tables.sin_TD, sin[0])


def test_yarn_scales_cosines_and_sines() -> None:
    assert rope_kind(scaled("yarn"), 16, 1024).factor > 1.1


@pytest.mark.parametrize(("layer_type", "head_dim"), [(SLIDING, 16), (FULL, 32)])
def test_gemma4_frequencies(layer_type: str, head_dim: int) -> None:
    model = tiny_gemma4()
    own = model.get_buffer(f"model.rotary_emb.{layer_type}_inv_freq")
    params = model.config.rope_parameters[layer_type]
    assert torch.equal(rope_kind(params, head_dim, 1024).inv_freq, own)


def test_proportional_turns_a_quarter_and_leaves_the_rest() -> None:
    params = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    inv_freq = rope_kind(params, 512, 131_072).inv_freq
    expected = 1e6 ** (-torch.arange(64, dtype=torch.float64) * 2 / 512)
    torch.testing.assert_close(inv_freq[:64].double(), expected)
    assert not inv_freq[64:].any()
    assert inv_freq.shape == (256,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation(dtype: torch.dtype) -> None:
    x = torch.randn(6, 3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    tables = rope_tables(POSITIONS, rope_kind(scaled("default"), 16, 1024).inv_freq, 1.0, dtype)
    found = apply_rope(x, tables)
    assert torch.equal(found, modeling_gemma4.apply_rotary_pos_emb(x, *tables))
    assert torch.equal(found, modeling_llama.apply_rotary_pos_emb(x, x, *tables)[0])
    assert torch.equal(found[0], x[0])
