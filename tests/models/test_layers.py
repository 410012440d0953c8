"""Leaves and groups: packed views are found exactly where rows are adjacent, and change nothing."""

from __future__ import annotations

import pytest
import torch

from flexinfer.models.catalog import build_decoder
from flexinfer.models.layers import Dense, Packed, Separate, group, packed_view
from tests.support.dense import run_packed
from tests.support.packed import pack_projections
from tests.support.prompts import assert_same, distance, prompts_of
from tests.support.tiny import tiny_gemma4, tiny_llama, tiny_qwen3

BUFFER = torch.arange(60.0).view(10, 6)


def test_adjacent_rows_are_one_view_of_the_same_memory() -> None:
    view = packed_view(BUFFER[1:3], BUFFER[3:7], BUFFER[7:8])
    assert view is not None
    assert torch.equal(view, BUFFER[1:8])
    assert view.data_ptr() == BUFFER[1:].data_ptr()


@pytest.mark.parametrize(
    "weights",
    [
        (BUFFER[0:2], BUFFER[3:5]),
        (BUFFER[2:4], BUFFER[0:2]),
        (BUFFER[0:3], BUFFER[2:5]),
        (BUFFER[0:2], BUFFER.clone()[2:4]),
        (BUFFER[0:2, :3], BUFFER[2:4]),
        (BUFFER[0:4:2], BUFFER[4:6]),
        (BUFFER.T[0:2], BUFFER.T[2:4].contiguous()),
        (BUFFER[0:2], BUFFER[2:4].view(torch.int32)),
        (BUFFER[0:2], BUFFER[2:4].view(2, 2, 3)),
    ],
    ids=["gap", "order", "overlap", "storage", "width", "step", "stride", "dtype", "rank"],
)
def test_everything_else_is_not(weights: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert packed_view(*weights) is None


def test_a_group_is_packed_only_if_its_biases_are() -> None:
    bias = torch.arange(10.0)
    packed = group(Dense(BUFFER[:4], bias[:4]), Dense(BUFFER[4:], bias[4:]))
    apart = group(Dense(BUFFER[:4], bias[:4]), Dense(BUFFER[4:], bias[4:].clone()))
    mixed = group(Dense(BUFFER[:4], bias[:4]), Dense(BUFFER[4:]))
    assert isinstance(packed, Packed)
    assert isinstance(apart, Separate)
    assert isinstance(mixed, Separate)
    assert packed.widths == apart.widths == mixed.widths == (4, 6)
    x = torch.ones(2, 6)
    for one, other in zip(packed(x), apart(x), strict=True):
        torch.testing.assert_close(one, other)


class OtherLeaf:
    """A leaf of another kind, as LoRA and 4-bit will be."""

    rows = 6

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return zeros."""
        return x.new_zeros(x.shape[0], 6)


def test_a_group_keeps_leaves_of_other_kinds() -> None:
    both = group(Dense(BUFFER[:4]), OtherLeaf())
    assert isinstance(both, Separate)
    assert both.widths == (4, 6)
    assert [tuple(out.shape) for out in both(torch.ones(3, 6))] == [(3, 4), (3, 6)]


BUILDERS = {
    "qwen3": lambda: tiny_qwen3(attention_bias=True),
    "llama": lambda: tiny_llama(attention_bias=True, mlp_bias=True),
    "gemma4": tiny_gemma4,
    "gemma4-k-eq-v": lambda: tiny_gemma4(attention_k_eq_v=True, num_global_key_value_heads=1),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_packed_weights_give_the_same_logits_and_follow_edits(name: str) -> None:
    model, prompts = BUILDERS[name](), prompts_of(20, 9)
    apart = run_packed(build_decoder(model), prompts)
    pack_projections(model)
    decoder = build_decoder(model)
    kinds = {type(part) for layer in decoder.layers for part in layer.weights}
    assert Packed in kinds
    assert_same(run_packed(decoder, prompts), apart)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(-2)
        model.model.layers[1].mlp.up_proj.weight.mul_(0.5)
    edited = run_packed(decoder, prompts)
    fresh = BUILDERS[name]()
    fresh.load_state_dict(model.state_dict())
    assert_same(edited, run_packed(build_decoder(fresh), prompts))
    assert distance(edited, apart) > 0.1
