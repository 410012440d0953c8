"""How a matrix product is cut, and how kernels load its blocks: by TMA or by pointers.

Shape letters: M rows, N outputs, K inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


class Tile(NamedTuple):
    """How a product is cut: BM x BN outputs a block, BK inputs a turn, `split` blocks along K.

    `tma` 1: load tiles through the tensor memory accelerator (sm_90 and newer).
    """

    BM: int
    BN: int
    BK: int
    split: int
    warps: int
    stages: int
    tma: int


@triton.jit
def load_block(source, row, col, rows, K, R: tl.constexpr, C: tl.constexpr, TMA: tl.constexpr):
    """Return the tile [R, C] at (row, col) of a row-major [rows, K] matrix, zero beyond `rows`."""
    if TMA:
        tile = source.load([row, col])
    else:
        r = row + tl.arange(0, R)
        at = source + r[:, None].to(tl.int64) * K + col + tl.arange(0, C)[None, :]
        tile = tl.load(at, mask=r[:, None] < rows, other=0.0)
    return tile


def operands(x_MK: Tensor, w_NK: Tensor, tile: Tile) -> tuple[object, object]:
    """Return what the kernel loads from: descriptors with TMA, the tensors without."""
    if not tile.tma:
        return x_MK, w_NK
    return (
        TensorDescriptor.from_tensor(x_MK, [tile.BM, tile.BK]),
        TensorDescriptor.from_tensor(w_NK, [tile.BN, tile.BK]),
    )
