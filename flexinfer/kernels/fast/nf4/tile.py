"""How products with packed NF4 weights are cut, and what their kernels are launched with.

Shape letters: M rows, N outputs, K inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.nf4.lut import PLAIN, SHUFFLE
from flexinfer.kernels.nf4 import Nf4

ROWS = 64
"""Up to how many rows a fused product is used by default: each further 64 dequantise anew."""
SPLITS = (19, 16, 10, 8, 5, 4, 3, 2, 1)
BLOCKS = 768
"""Blocks of an untuned product at most: five or six for each multiprocessor of a large device."""
WIDE_BLOCKS = 512
"""The same where a block takes 64 rows, whose partial sums are longer."""
APART, LEFT = 0, 1
"""Forms: even and odd weights apart, or joined as the left operand."""
LEAST_SHARE = 32
"""Inputs of a turn that a warp has at least: tensor cores take 16 even ones and 16 odd ones."""
DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Nf4Tile(NamedTuple):
    """A Tile, BK a multiple of 64, with the form in which a turn multiplies: see turns.py.

    None loads by TMA: bytes come apart into the operands of tensor cores, and what unswizzles them
    costs more instructions than the loads spare.
    """

    BM: int
    BN: int
    BK: int
    split: int
    warps: int
    stages: int
    form: int = APART


def look_up() -> int:
    """Return which look-up is used: the interpreter runs no PTX."""
    return PLAIN if triton.knobs.runtime.interpret else SHUFFLE


def ways(tile: Nf4Tile) -> int:
    """Return among how many warps a turn's inputs are shared out."""
    return tile.warps if tile.form == APART else 1


def untuned(rows: int, outputs: int, inputs: int, *, split: bool) -> Nf4Tile | None:
    """Return a tile that fits any device, None where the product is for cuBLAS, dequantised.

    A block takes 64 outputs and all rows. K is split, where the consumer adds partial sums, as far
    as there are not too many blocks; where that leaves less than half of them, a turn takes fewer
    inputs, if it splits further then.
    """
    few = rows <= 32
    if rows > ROWS or inputs % 64:
        return None
    most = (BLOCKS if few else WIDE_BLOCKS) // -(-outputs // 64)
    BK, parts = 64, _splits(inputs // 64, most) if split else 1
    if inputs % 128 == 0:
        wide = _splits(inputs // 128, most) if split else 1
        if 2 * wide >= min(most, 2 * parts):
            BK, parts = 128, wide
    if not few:
        return Nf4Tile(64, 64, BK, parts, 4, 2 if BK == 128 else 4, LEFT)
    BM = 8 if rows <= 8 else 16 if rows <= 16 else 32
    return Nf4Tile(BM, 64, BK, parts, BK // LEAST_SHARE, 3 if BK == 128 else 5, APART)


def _splits(turns: int, most: int) -> int:
    """Return the most parts of equal turns, but not more than `most`."""
    return next(parts for parts in SPLITS if parts == 1 or (parts <= most and turns % parts == 0))


def share_inputs(inputs: int, tile: Nf4Tile) -> int:
    """Return the inputs of a share of a split product: whole turns, so the last may have fewer."""
    return -(-(inputs // tile.BK) // tile.split) * tile.BK


def whole_shares(inputs: int, tile: Nf4Tile) -> bool:
    """Return whether every share of a split product has a turn at least, and turns are whole."""
    return inputs % tile.BK == 0 and (tile.split - 1) * share_inputs(inputs, tile) < inputs


def check_nf4(x_MK: Tensor, leaf: Nf4, tile: Nf4Tile) -> None:
    """Assert what the kernels take for granted."""
    assert x_MK.dtype == leaf.dtype, (x_MK.dtype, leaf.dtype)
    assert whole_shares(x_MK.shape[1], tile), (x_MK.shape, tile)
    assert x_MK.is_contiguous(), "rows must be contiguous"
    assert leaf.packed.is_contiguous(), "bytes must be row-major"
    assert leaf.absmax.is_contiguous(), "scales must be row-major"
    assert tile.BK % 64 == 0, tile
    assert LEAST_SHARE * ways(tile) <= tile.BK, tile


def words_of(x: Tensor, tile: Nf4Tile) -> Tensor:
    """Return inputs as the kernels read them beside weights: as they are, or as words of two."""
    if tile.form != APART:
        return x
    return x.view(torch.int64 if x.dtype == torch.float32 else torch.int32)
