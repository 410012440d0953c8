"""The product of an adapter's side path, down to the ranks, in the same pass as its base's.

A small product of its own would pay a launch and fill no device. Here the grid of the base's
product has a few blocks more, which multiply by A instead of W: A is read where it lies. What adds
B is in add.py.

Shape letters: M rows, N outputs, K inputs, R ranks (of all members of a group), S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.tile import Tile, load_block, operands

ALIGNMENT = 16
"""Rows of a result start at multiples of this many numbers, so that whole vectors are stored."""


@triton.jit(do_not_specialize=["M"])
def lora_matmul_kernel(
    x, w, a, out, M, N, R, K, per, stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m] = x[m] w^T, then x[m] a^T, over the inputs of share s.

    Grid (N / BN + R / BN, K / per, M / BM); rows of `out` lie `stride` apart.
    """
    n0 = tl.program_id(0) * BN
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    r0 = n0 - tl.cdiv(N, BN) * BN
    source, row, rows, column = w, n0, N, n0
    if r0 >= 0:
        source, row, rows, column = a, r0, R, N + r0
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    await_inputs(PDL)
    for k in tl.range(0, per, BK, num_stages=STAGES):
        weights = load_block(source, row, part * per + k, rows, K, BN, BK, TMA)
        inputs = load_block(x, m0, part * per + k, M, K, BM, BK, TMA)
        acc = tl.dot(inputs, weights.T, acc, input_precision="ieee")
    release_next(PDL)
    m = m0 + tl.arange(0, BM)
    n = tl.arange(0, BN)
    at = out + (part * M + m[:, None]).to(tl.int64) * stride + column + n[None, :]
    live = (m[:, None] < M) & (row + n[None, :] < rows)
    tl.store(at, acc.to(out.dtype.element_ty), mask=live)


def lora_matmul(x_MK: Tensor, w_NK: Tensor, a_RK: Tensor, tile: Tile) -> Tensor:
    """Return x w^T and x a^T side by side, [S, M, N + R]: fp32 partial sums where S > 1.

    In the dtype of `x` where the tile does not split K: nothing is left to add, so it is rounded.
    K must be a multiple of split * BK; `softcap` and biases have no place here.
    """
    M, K = x_MK.shape
    N, R = len(w_NK), len(a_RK)
    assert K % (tile.split * tile.BK) == 0, (K, tile)
    assert x_MK.is_contiguous(), "rows must be contiguous"
    assert w_NK.stride() == (K, 1), "weights must be row-major"
    assert a_RK.stride() == (K, 1), "A must be row-major"
    out = room(x_MK, N + R, tile.split)
    pdl = dependent(x_MK, M)
    low = TensorDescriptor.from_tensor(a_RK, [tile.BN, tile.BK]) if tile.tma else a_RK
    grid = (triton.cdiv(N, tile.BN) + triton.cdiv(R, tile.BN), tile.split, triton.cdiv(M, tile.BM))
    lora_matmul_kernel[grid](
        *operands(x_MK, w_NK, tile), low, out, M, N, R, K, K // tile.split, out.stride(1),
        tile.BM, tile.BN, tile.BK, tile.tma, tile.stages, pdl,
        num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def lora_linear(x_MK: Tensor, w_NK: Tensor, a_RK: Tensor) -> Tensor:
    """Return what `lora_matmul` does, [1, M, N + R], by cuBLAS: where no tile is faster."""
    N = len(w_NK)
    out = room(x_MK, N + len(a_RK), 1)
    torch.mm(x_MK, w_NK.t(), out=out[0, :, :N])
    torch.mm(x_MK, a_RK.t(), out=out[0, :, N:])
    return out


def room(x_MK: Tensor, columns: int, split: int) -> Tensor:
    """Return [split, M, columns] with aligned rows, fp32 for partial sums."""
    dtype = x_MK.dtype if split == 1 else torch.float32
    stride = -(-columns // ALIGNMENT) * ALIGNMENT
    return x_MK.new_empty(split, len(x_MK), stride, dtype=dtype)[..., :columns]


def gated_tile(tile: Tile) -> Tile:
    """Return the tile of a plain product over gate and up that moves what a gated tile moves."""
    return tile._replace(BN=2 * tile.BN)
