"""4-bit products: split along K or not, any number of rows, in both forms."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.fast.nf4.lora import nf4_lora_matmul
from flexinfer.kernels.fast.nf4.matmul import nf4_dequantise, nf4_matmul
from flexinfer.kernels.fast.nf4.tile import APART, LEFT, Nf4Tile
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.nf4 import CODE, Nf4
from tests.support.triton_interpreter import DTYPES, close, normal

INPUTS = 384
forms = pytest.mark.parametrize("form", [APART, LEFT])
rows = pytest.mark.parametrize("rows", [1, 16, 19])


splits = pytest.mark.parametrize(("inputs", "split"), [(384, 1), (384, 3), (448, 3)])
"""The last: 7 turns of 64, of which the last share has one and the others three."""


def cut(*matrices: Tensor, inputs: int, split: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield each share's columns of the matrices: whole turns of 64."""
    width = 64 * ceil(inputs / 64 / split)
    return zip(*(matrix.split(width, 1) for matrix in matrices), strict=True)


def leaf(outputs: int, dtype: torch.dtype = torch.float32, inputs: int = INPUTS) -> Nf4:
    """Draw bytes and scales."""
    draw = torch.Generator().manual_seed(outputs)
    packed = torch.randint(256, (outputs, inputs // 2), generator=draw).to(torch.uint8)
    absmax = torch.rand(outputs, inputs // 64, generator=draw) + 0.5
    return Nf4(packed, absmax, torch.tensor(CODE), dtype)


@rows
@forms
@splits
def test_each_share_is_the_product_of_its_inputs(
    rows: int, inputs: int, split: int, form: int
) -> None:
    x, w = normal(rows, inputs), leaf(64, inputs=inputs)
    found = nf4_matmul(x, w, Nf4Tile(16, 32, 64, split, 2, 3, form))
    assert found.dtype == torch.float32
    assert found.shape == ((rows, 64) if split == 1 else (split, rows, 64))
    shares = cut(x, w.weight(), inputs=inputs, split=split)
    close(found.view(split, rows, 64), torch.stack([F.linear(*share) for share in shares]), 1e-4)


@forms
def test_several_blocks_a_turn(form: int) -> None:
    x, w = normal(5, INPUTS), leaf(64)
    close(nf4_matmul(x, w, Nf4Tile(16, 32, 128, 1, 2, 3, form)), w(x), 1e-4)


@pytest.mark.parametrize("warps", [1, 2, 4])
def test_however_many_warps_share_a_turn(warps: int) -> None:
    x, w = normal(5, INPUTS), leaf(64)
    close(nf4_matmul(x, w, Nf4Tile(8, 32, 128, 1, warps, 3, APART)), w(x), 1e-4)


@forms
def test_outputs_that_no_tile_divides(form: int) -> None:
    x, w = normal(5, INPUTS), leaf(80)
    close(nf4_matmul(x, w, Nf4Tile(16, 32, 128, 1, 2, 3, form)), w(x), 1e-4)


@forms
@pytest.mark.parametrize("ranks", [3, 40])
@splits
def test_beside_the_ranks_of_a_side_path(inputs: int, split: int, ranks: int, form: int) -> None:
    x, w, a = normal(19, inputs), leaf(80, inputs=inputs), normal(ranks, inputs, seed=3)
    found = nf4_lora_matmul(x, w, a, Nf4Tile(16, 32, 64, split, 2, 3, form))
    assert found.shape == (split, 19, w.rows + ranks)
    assert found.dtype == torch.float32
    shares = cut(x, torch.cat((w.weight(), a)), inputs=inputs, split=split)
    close(found, torch.stack([F.linear(*share) for share in shares]), 1e-4)


@forms
def test_nothing_is_written_between_rows(form: int) -> None:
    """Rows are aligned: what lies between them stays as it was."""
    w, a = leaf(80, inputs=64), normal(3, 64, seed=3)
    found = nf4_lora_matmul(normal(5, 64), w, a, Nf4Tile(16, 32, 64, 1, 2, 3, form))
    assert found.stride(1) == 96
    assert torch.as_strided(found, (4, 13), (96, 1), 83).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("outputs", [64, 80])
def test_dequantised_bit_for_bit(dtype: torch.dtype, outputs: int) -> None:
    w = leaf(outputs, dtype)
    assert torch.equal(nf4_dequantise(w), w.weight())


@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_no_tile_that_is_tried_changes_a_weight(rows: int) -> None:
    """One input a row is 1, so the product is one weight: the bits of the reference, not near."""
    w = leaf(128, torch.float16, 512)
    x = torch.eye(512, dtype=torch.float16)[:: 512 // rows].contiguous()
    expected = w.weight().T[:: 512 // rows]
    tried = [tile for family in candidates.nf4(128, 512, rows, 132) for tile in family.tiles]
    assert len({tile.split for tile in tried}) > 1
    assert {tile.form for tile in tried} == ({APART, LEFT} if rows > 16 else {APART})
    for tile in tried:
        found = nf4_matmul(x, w, tile)
        assert torch.equal(found if tile.split == 1 else found.sum(0).half(), expected), tile


@pytest.mark.parametrize("tile", [Nf4Tile(16, 32, 256, 1, 4, 3), Nf4Tile(16, 32, 64, 4, 2, 3)])
def test_inputs_of_part_of_a_turn_and_empty_shares_are_refused(tile: Nf4Tile) -> None:
    with pytest.raises(AssertionError):
        nf4_matmul(normal(1, INPUTS), leaf(64), tile)
