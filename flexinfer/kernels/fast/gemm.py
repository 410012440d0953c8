"""Skinny matrix products that read every weight once: [M, K] x [N, K]^T for few rows.

A decode step is bound by reading weights, so the grid is cut along N and, where that gives too few
blocks to fill the device, along K as well (split-K): each split writes fp32 partial sums and the
kernel that consumes them adds them up, so no extra pass is paid. The second kernel computes gate
and up together and writes act(gate) * up. Idea of split-K: Osama et al. 2023, "Stream-K".

Shape letters: M rows, N outputs, K inputs, S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from flexinfer.kernels.fast.act import capped, gelu_tanh, silu
from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.tile import Tile, load_block, operands


@triton.jit(do_not_specialize=["M"])
def matmul_kernel(
    x, w, out, M, N, K, per,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    CAP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m, n] = sum over inputs [s * per, (s + 1) * per); grid (N / BN, K / per, M / BM).

    CAP c > 0: c tanh(sum / c), each step rounded as torch does.
    """
    n0 = tl.program_id(0) * BN
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    await_inputs(PDL)
    for k in tl.range(0, per, BK, num_stages=STAGES):
        weights = load_block(w, n0, part * per + k, N, K, BN, BK, TMA)
        rows = load_block(x, m0, part * per + k, M, K, BM, BK, TMA)
        acc = tl.dot(rows, weights.T, acc, input_precision="ieee")
    release_next(PDL)
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    at = out + (part * M + m[:, None]).to(tl.int64) * N + n[None, :]
    if CAP > 0:
        acc = capped(acc, CAP, out.dtype.element_ty)
    tl.store(at, acc.to(out.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M"])
def gated_kernel(
    x, w, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GELU: tl.constexpr,
    TMA: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[m, n] = act(x w[n]) * (x w[N + n]), gate and up rounded first; grid (N / BN, M / BM)."""
    n0 = tl.program_id(0) * BN
    m0 = tl.program_id(1) * BM
    gate = tl.zeros([BM, BN], dtype=tl.float32)
    up = tl.zeros([BM, BN], dtype=tl.float32)
    await_inputs(PDL)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        rows = load_block(x, m0, k, M, K, BM, BK, TMA)
        weights = load_block(w, n0, k, 2 * N, K, BN, BK, TMA)
        gate = tl.dot(rows, weights.T, gate, input_precision="ieee")
        weights = load_block(w, N + n0, k, 2 * N, K, BN, BK, TMA)
        up = tl.dot(rows, weights.T, up, input_precision="ieee")
    release_next(PDL)
    dtype: tl.constexpr = out.dtype.element_ty
    gate = gate.to(dtype).to(tl.float32)
    act = gelu_tanh(gate) if GELU else silu(gate)
    value = act.to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    at = out + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(at, value.to(dtype), mask=(m[:, None] < M) & (n[None, :] < N))


def matmul(x_MK: Tensor, w_NK: Tensor, tile: Tile, softcap: float = 0.0) -> Tensor:
    """Return [M, N] in the dtype of `x`, or fp32 partial sums [S, M, N] where the tile splits K.

    K must be a multiple of split * BK, and N of BN where `tile.tma` is not set. `softcap` c > 0
    makes it c tanh(product / c) (not with split K).
    """
    M, K = x_MK.shape
    N = w_NK.shape[0]
    assert K % (tile.split * tile.BK) == 0, (K, tile)
    assert tile.split == 1 or not softcap, "partial sums cannot be capped"
    assert x_MK.is_contiguous(), "rows must be contiguous"
    assert w_NK.stride() == (K, 1), "weights must be row-major"
    if tile.split == 1:
        out = x_MK.new_empty(M, N)
    else:
        out = x_MK.new_empty(tile.split, M, N, dtype=torch.float32)
    pdl = dependent(x_MK, M)
    grid = (triton.cdiv(N, tile.BN), tile.split, triton.cdiv(M, tile.BM))
    matmul_kernel[grid](
        *operands(x_MK, w_NK, tile), out, M, N, K, K // tile.split, tile.BM, tile.BN, tile.BK,
        tile.tma, tile.stages, softcap, pdl, num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def filled_matmul(x_MK: Tensor, w_NK: Tensor, tile: Tile, softcap: float = 0.0) -> Tensor:
    """Return `matmul` for any K: up to the next multiple of split * BK both are filled with zeros.

    Zeros add nothing to a sum, and its order stays the tile's; it costs a copy of both.
    """
    short = -x_MK.shape[1] % (tile.split * tile.BK)
    if short:
        x_MK, w_NK = pad(x_MK, (0, short)), pad(w_NK, (0, short))
    return matmul(x_MK, w_NK, tile, softcap)


def gated_matmul(x_MK: Tensor, w_2NK: Tensor, activation: str, tile: Tile) -> Tensor:
    """Return act(x gate^T) * (x up^T) as [M, N]; the rows of `w` are gate's, then up's.

    N must be a multiple of BN and K of BK; `activation` is silu or gelu_pytorch_tanh.
    """
    M, K = x_MK.shape
    N = w_2NK.shape[0] // 2
    assert K % tile.BK == 0, (K, tile)
    assert N % tile.BN == 0, (N, tile)
    assert x_MK.is_contiguous(), "rows must be contiguous"
    assert w_2NK.stride() == (K, 1), "weights must be row-major"
    out, pdl = x_MK.new_empty(M, N), dependent(x_MK, M)
    gated_kernel[(N // tile.BN, triton.cdiv(M, tile.BM))](
        *operands(x_MK, w_2NK, tile), out, M, N, K, tile.BM, tile.BN, tile.BK,
        activation == "gelu_pytorch_tanh", tile.tma, tile.stages, pdl,
        num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out
