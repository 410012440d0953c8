"""How products with packed NF4 weights are cut, and what their kernels are launched with.

Shape letters: M rows, N outputs, K inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flexinfer.kernels.fast.nf4.lut import HELD, PLAIN, SHUFFLE
from flexinfer.kernels.nf4 import Nf4

ROWS = 64
"""Up to how many rows a fused product is used by default: each further 64 dequantise anew."""
SPLITS = (8, 5, 4, 3, 2)
BLOCKS = 768
"""Blocks of an untuned product at most: five or six for each multiprocessor of a large device."""
WIDE_BLOCKS = 400
"""The same where a block takes 64 rows: three fit a multiprocessor, and further ones wait."""
APART, LEFT, RIGHT = 0, 1, 2
"""Forms: even and odd weights apart, joined as the left operand, joined as the right one."""
DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Nf4Tile(NamedTuple):
    """A Tile, BK a multiple of 64, with the form in which a turn multiplies: see turns.py."""

    BM: int
    BN: int
    BK: int
    split: int
    warps: int
    stages: int
    tma: int
    form: int = APART


def look_up(form: int = APART) -> int:
    """Return which look-up serves a form: RIGHT reads bytes as they lie, whatever reads them."""
    if triton.knobs.runtime.interpret:
        return PLAIN
    return HELD if form == RIGHT else SHUFFLE


def untuned(rows: int, outputs: int, inputs: int, *, split: bool) -> Nf4Tile | None:
    """Return a tile that fits any device, None where the product is for cuBLAS, dequantised.

    A block takes 64 outputs and all rows: up to 32 with two warps, more with a warp group. In both
    no weight goes through shared memory once it is dequantised. K is split, where the consumer adds
    partial sums, as far as there are not too many blocks.
    """
    few = rows <= 32
    BK = 128 if inputs % 128 == 0 else 64
    if rows > ROWS or inputs % BK:
        return None
    blocks, turns, most = -(-outputs // 64), inputs // BK, BLOCKS if few else WIDE_BLOCKS
    fit = (s for s in SPLITS if split and turns % s == 0 and blocks * s <= most)
    BM = 16 if rows <= 16 else 32 if few else 64
    warps, form = (2, APART) if few else (4, LEFT)
    return Nf4Tile(BM, 64, BK, next(fit, 1), warps, 3 if BK == 128 else 4, 0, form)


def check_nf4(x_MK: Tensor, leaf: Nf4, tile: Nf4Tile) -> None:
    """Assert what the kernels take for granted."""
    assert x_MK.dtype == leaf.dtype, (x_MK.dtype, leaf.dtype)
    assert x_MK.shape[1] % (tile.split * tile.BK) == 0, (x_MK.shape, tile)
    assert x_MK.is_contiguous(), "rows must be contiguous"
    assert leaf.packed.is_contiguous(), "bytes must be row-major"
    assert leaf.absmax.is_contiguous(), "scales must be row-major"
    assert tile.BK % 64 == 0, tile


def words_of(x: Tensor, tile: Nf4Tile) -> Tensor:
    """Return inputs as the kernel reads them: as they are, or as words of two."""
    if tile.form != APART:
        return x
    return x.view(torch.int64 if x.dtype == torch.float32 else torch.int32)


def nf4_operands(x_MK: Tensor, leaf: Nf4, tile: Nf4Tile) -> tuple[object, object]:
    """Return what the kernel loads from: descriptors with TMA, tensors without."""
    words = words_of(x_MK, tile)
    if not tile.tma:
        return words, leaf.packed
    columns = tile.BK // (2 if tile.form == APART else 1)
    return (
        TensorDescriptor.from_tensor(words, [tile.BM, columns]),
        TensorDescriptor.from_tensor(leaf.packed, [tile.BN, tile.BK // 2]),
    )
