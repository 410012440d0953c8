"""What a step starts with: embeddings, rope tables, per-layer inputs, what the slots hold."""

from __future__ import annotations

import pytest
import torch

from flexinfer.engine.steps.programs import look_up
from flexinfer.kernels import embed as plain
from flexinfer.kernels.fast.embed import embed, layer_inputs, rope_tables
from flexinfer.kernels.fast.gather import gather_rows
from flexinfer.kernels.rope import rope_tables as plain_tables
from tests.support.triton_interpreter import DTYPES, normal, same

TOKENS = torch.tensor([3, 0, 6, 3])
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@dtypes
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("scale", [1.0, 8.0625])
@pytest.mark.parametrize("size", [64, 96])
def test_embed(size: int, scale: float, late: bool, dtype: torch.dtype) -> None:
    given = (TOKENS, normal(7, size, dtype=dtype), scale, normal(size, seed=1, dtype=dtype))
    for found, expected in zip(
        embed(*given, 1e-5, late), plain.embed(*given, 1e-5, late), strict=True
    ):
        same(found, expected)


@dtypes
def test_rope_tables(dtype: torch.dtype) -> None:
    given = (torch.tensor([0, 1, 77, 40_000]), 10_000.0 ** -(torch.arange(16) / 16), 0.8, dtype)
    for found, expected in zip(rope_tables(*given), plain_tables(*given), strict=True):
        same(found, expected)


@dtypes
def test_layer_inputs(dtype: torch.dtype) -> None:
    given = (
        TOKENS, normal(7, 3 * 16, dtype=dtype), normal(4, 3 * 16, seed=1, dtype=dtype),
        normal(16, seed=2, dtype=dtype), 4.0, 0.125, 1e-6,
    )  # fmt: skip
    same(layer_inputs(*given), plain.layer_inputs(*given))


@pytest.mark.parametrize("columns", [5, 3, 1])
def test_slots_are_looked_up(columns: int) -> None:
    """Steps outside graphs pass a table narrowed to the columns in use."""
    table = torch.arange(30).view(6, 5).int()[:, :columns]
    tokens, positions = torch.arange(6) + 50, torch.arange(6) * 16 % (columns * 16) + 7
    given = (table, tokens, positions, torch.tensor([4, 0, 5]), 16)
    for found, expected in zip(gather_rows(*given), look_up(*given), strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
