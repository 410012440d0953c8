"""Skinny products with packed NF4 weights: dequantised in registers, read once, never written.

How a turn multiplies is in turns.py. Otherwise as gemm.py, with split-K partial sums for the kernel
that consumes them. There is no gated form: gate and up as one product and an activation beside it
take as long where blocks are many, and less where only partial sums fill the device.

Shape letters: M rows, N outputs, K inputs, S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.nf4.lut import table_of
from flexinfer.kernels.fast.nf4.tile import (
    DTYPES,
    Nf4Tile,
    check_nf4,
    look_up,
    share_inputs,
    ways,
    words_of,
)
from flexinfer.kernels.fast.nf4.turns import share, store_block, weights_of
from flexinfer.kernels.nf4 import Nf4


@triton.jit(do_not_specialize=["M"])
def nf4_matmul_kernel(
    x, w, absmax, code, out, M, N, K, per,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, LUT: tl.constexpr,
    FORM: tl.constexpr, WAYS: tl.constexpr, dtype: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m, n] = sum over inputs [s * per, (s + 1) * per) below K; grid (N / BN, S, M / BM)."""
    n0 = tl.program_id(0) * BN
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    table = table_of(code, LUT)
    await_inputs(PDL)
    sums = share(
        x, w, absmax, table, n0, m0, part * per, per, M, N, K,
        BM, BN, BK, STAGES, LUT, FORM, WAYS, dtype,
    )  # fmt: skip
    release_next(PDL)
    store_block(sums, out, m0, n0, n0, part, M, N, N, BM, BN)


@triton.jit
def nf4_dequantise_kernel(
    w, absmax, code, out, N, K, BN: tl.constexpr, BK: tl.constexpr, LUT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[n, k] = code times absmax, rounded once; grid (N / BN, K / BK)."""
    n0 = tl.program_id(0) * BN
    k0 = tl.program_id(1) * BK
    table = table_of(code, LUT)
    await_inputs(PDL)
    release_next(PDL)
    even, odd = weights_of(w, absmax, table, n0, k0, N, K, BN, BK, LUT, out.dtype.element_ty)
    n = n0 + tl.arange(0, BN)
    at = out + n[:, None].to(tl.int64) * K + k0 + tl.arange(0, BK)[None, :]
    tl.store(at, tl.interleave(even, odd), mask=n[:, None] < N)


def nf4_matmul(x_MK: Tensor, leaf: Nf4, tile: Nf4Tile) -> Tensor:
    """Return [M, N] in the dtype of `x`, or fp32 partial sums [S, M, N] where the tile splits K.

    K must be a multiple of BK with a turn for every share, and BK of 64. The leaf's bias is not
    added.
    """
    (M, K), N = x_MK.shape, leaf.rows
    check_nf4(x_MK, leaf, tile)
    if tile.split == 1:
        out = x_MK.new_empty(M, N)
    else:
        out = x_MK.new_empty(tile.split, M, N, dtype=torch.float32)
    pdl = dependent(x_MK, M)
    grid = (triton.cdiv(N, tile.BN), tile.split, triton.cdiv(M, tile.BM))
    nf4_matmul_kernel[grid](
        words_of(x_MK, tile), leaf.packed, leaf.absmax, leaf.code, out, M, N, K,
        share_inputs(K, tile), tile.BM, tile.BN, tile.BK, tile.stages, look_up(), tile.form,
        ways(tile), DTYPES[leaf.dtype], pdl, num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def nf4_dequantise(leaf: Nf4) -> Tensor:
    """Return `leaf.weight()` [N, K], the same bits, in one pass."""
    N, K = leaf.rows, leaf.packed.shape[1] * 2
    out = torch.empty(N, K, dtype=leaf.dtype, device=leaf.packed.device)
    pdl = dependent(out, 1)
    nf4_dequantise_kernel[(triton.cdiv(N, 64), K // 64)](
        leaf.packed, leaf.absmax, leaf.code, out, N, K, 64, 64, look_up(), pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out
