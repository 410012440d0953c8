"""Products: split along K or not, any number of rows, loaded by TMA or not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from flexinfer.kernels.fast.gemm import filled_matmul, gated_matmul, matmul
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.mlp import gated
from tests.support.triton_interpreter import close, normal

INPUTS = 192
tma = pytest.mark.parametrize("tma", [0, 1])
rows = pytest.mark.parametrize("rows", [1, 16, 19])


@tma
@rows
@pytest.mark.parametrize("split", [1, 2, 3, 4])
def test_each_share_is_the_product_of_its_inputs(rows: int, split: int, tma: int) -> None:
    x, w = normal(rows, INPUTS), normal(64, INPUTS, seed=1)
    found = matmul(x, w, Tile(16, 32, 16, split, 4, 3, tma))
    assert found.dtype == torch.float32
    assert found.shape == ((rows, 64) if split == 1 else (split, rows, 64))
    shares = zip(x.chunk(split, 1), w.chunk(split, 1), strict=True)
    close(found.view(split, rows, 64), torch.stack([F.linear(*share) for share in shares]), 1e-4)


@tma
def test_outputs_that_no_tile_divides(tma: int) -> None:
    x, w = normal(5, INPUTS), normal(80, INPUTS, seed=1)
    close(matmul(x, w, Tile(16, 32, 64, 1, 4, 3, tma)), F.linear(x, w), 1e-4)


@tma
@rows
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_gated(rows: int, activation: str, tma: int) -> None:
    x, w = normal(rows, INPUTS), normal(2 * 64, INPUTS, seed=1) * 0.2
    found = gated_matmul(x, w, activation, Tile(16, 32, 32, 1, 4, 3, tma))
    close(found, gated(*F.linear(x, w).chunk(2, 1), activation), 1e-4)


@pytest.mark.parametrize("tile", [Tile(16, 32, 128, 1, 4, 3, 0), Tile(16, 32, 64, 2, 4, 3, 0)])
def test_inputs_that_the_tile_does_not_divide_are_refused(tile: Tile) -> None:
    with pytest.raises(AssertionError):
        matmul(normal(1, INPUTS), normal(64, INPUTS), tile)


@pytest.mark.parametrize("inputs", [40, 64, 100])
def test_inputs_that_the_tile_does_not_divide_are_filled_up(inputs: int) -> None:
    x, w = normal(5, inputs), normal(64, inputs, seed=1)
    found = filled_matmul(x, w, Tile(16, 32, 32, 2, 4, 3, 0))
    assert found.shape == (2, 5, 64)
    close(found.sum(0), F.linear(x, w), 1e-4)
