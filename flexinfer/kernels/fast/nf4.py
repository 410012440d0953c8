"""Skinny products with packed NF4 weights: dequantised in registers, read once, never written.

A byte holds the weights of inputs 2j (high half) and 2j + 1, so a turn makes two products: of the
even inputs with the high halves and of the odd ones with the low. `x` is read as words of two
inputs, which come apart in registers, so neither side is rearranged. Where a block has a warp group
(4 warps, 64 outputs) the halves are joined in registers instead: then `x` goes from global to
shared memory and from there to the tensor cores as it is, which many rows gain from. Otherwise as
gemm.py: split-K partial sums for the kernel that consumes them, and a gated form.

Shape letters: M rows, N outputs, K inputs, G blocks of 64 inputs, S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.act import gelu_tanh, silu
from flexinfer.kernels.fast.gemm import Tile, _load
from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.nf4_lut import halves
from flexinfer.kernels.fast.nf4_tile import (
    DTYPES,
    check_nf4,
    joins,
    look_up,
    nf4_operands,
    pairs,
)
from flexinfer.kernels.nf4 import Nf4


@triton.jit
def _inputs(words, dtype: tl.constexpr):
    """Return the even and the odd inputs of words of two."""
    if dtype == tl.float32:
        even, odd = words.to(tl.int32), (words >> 32).to(tl.int32)
    else:
        even, odd = words.to(tl.int16), (words >> 16).to(tl.int16)
    return even.to(dtype, bitcast=True), odd.to(dtype, bitcast=True)


@triton.jit
def _weights(
    w, absmax, code, n0, k, N, K, BN: tl.constexpr, BK: tl.constexpr,
    LUT: tl.constexpr, dtype: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return the weights [BN, BK / 2] of even and of odd inputs from input `k` on."""
    G: tl.constexpr = BK // 64
    bytes_ = _load(w, n0, k // 2, N, K // 2, BN, BK // 2, TMA)
    n = n0 + tl.arange(0, BN)
    at = absmax + n[:, None].to(tl.int64) * (K // 64) + k // 64 + tl.arange(0, G)[None, :]
    scale = tl.load(at, mask=n[:, None] < N, other=0.0)
    return halves(bytes_, scale, code, BN, G, LUT, dtype)


@triton.jit
def _pairs(
    w, absmax, code, n0, k, N, K, BN: tl.constexpr, BK: tl.constexpr, LUT: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Return the weights [2 BN, BK / 2] of gate and up, whose rows alternate, as `_weights` does.

    So a block of few outputs still has the rows that a warp group takes.
    """
    G: tl.constexpr = BK // 64
    i = tl.arange(0, 2 * BN)
    n = (n0 + i // 2 + i % 2 * N)[:, None].to(tl.int64)
    bytes_ = tl.load(w + n * (K // 2) + k // 2 + tl.arange(0, BK // 2)[None, :])
    scale = tl.load(absmax + n * (K // 64) + k // 64 + tl.arange(0, G)[None, :])
    return halves(bytes_, scale, code, 2 * BN, G, LUT, dtype)


@triton.jit
def _turn(acc, even, odd, x, JOIN: tl.constexpr, dtype: tl.constexpr):
    """Add to acc [BN, BM] the products of even and odd weights with inputs [BM, BK], or words."""
    if JOIN:
        joined = tl.reshape(tl.join(even, odd), [even.shape[0], 2 * even.shape[1]])
        acc = tl.dot(joined, x.T, acc, input_precision="ieee")
    else:
        x_even, x_odd = _inputs(x, dtype)
        acc = tl.dot(even, x_even.T, acc, input_precision="ieee")
        acc = tl.dot(odd, x_odd.T, acc, input_precision="ieee")
    return acc


@triton.jit
def _share(
    acc, x, w, absmax, code, n0, m0, first, per, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    LUT: tl.constexpr, JOIN: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Add to acc [BN, BM] the products over `per` inputs from `first` on."""
    WORD: tl.constexpr = 1 if JOIN else 2
    for k in tl.range(first, first + per, BK, num_stages=STAGES):
        even, odd = _weights(w, absmax, code, n0, k, N, K, BN, BK, LUT, dtype, TMA)
        inputs = _load(x, m0, k // WORD, M, K // WORD, BM, BK // WORD, TMA)
        acc = _turn(acc, even, odd, inputs, JOIN, dtype)
    return acc


@triton.jit
def _store(acc, out, m0, row, column, part, M, rows, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Write acc [BN, BM]: rows below `rows` of a matrix from `row` on, to columns from `column`."""
    m = m0 + tl.arange(0, BM)
    n = tl.arange(0, BN)
    at = out + (part * M + m[:, None]).to(tl.int64) * stride + column + n[None, :]
    live = (m[:, None] < M) & (row + n[None, :] < rows)
    tl.store(at, acc.T.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["M"])
def nf4_matmul_kernel(
    x, w, absmax, code, out, M, N, K, per,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    LUT: tl.constexpr, JOIN: tl.constexpr, dtype: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m, n] = sum over inputs [s * per, (s + 1) * per); grid (N / BN, K / per, M / BM)."""
    n0 = tl.program_id(0) * BN
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    acc = tl.zeros([BN, BM], dtype=tl.float32)
    await_inputs(PDL)
    acc = _share(
        acc, x, w, absmax, code, n0, m0, part * per, per, M, N, K,
        BM, BN, BK, TMA, STAGES, LUT, JOIN, dtype,
    )  # fmt: skip
    release_next(PDL)
    _store(acc, out, m0, n0, n0, part, M, N, N, BM, BN)


@triton.jit(do_not_specialize=["M"])
def nf4_gated_kernel(
    x, w, absmax, code, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GELU: tl.constexpr, TMA: tl.constexpr,
    STAGES: tl.constexpr, LUT: tl.constexpr, JOIN: tl.constexpr, dtype: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[m, n] = act(x w[n]) * (x w[N + n]), gate and up rounded first; grid (N / BN, M / BM)."""
    n0 = tl.program_id(0) * BN
    m0 = tl.program_id(1) * BM
    await_inputs(PDL)
    if JOIN:
        both = tl.zeros([2 * BN, BM], dtype=tl.float32)
        for k in tl.range(0, K, BK, num_stages=STAGES):
            inputs = _load(x, m0, k, M, K, BM, BK, TMA)
            even, odd = _pairs(w, absmax, code, n0, k, N, K, BN, BK, LUT, dtype)
            both = _turn(both, even, odd, inputs, JOIN, dtype)
        gate, up = tl.split(tl.permute(tl.reshape(both, [BN, 2, BM]), (0, 2, 1)))
    else:
        gate = tl.zeros([BN, BM], dtype=tl.float32)
        up = tl.zeros([BN, BM], dtype=tl.float32)
        for k in tl.range(0, K, BK, num_stages=STAGES):
            inputs = _load(x, m0, k // 2, M, K // 2, BM, BK // 2, TMA)
            even, odd = _weights(w, absmax, code, n0, k, 2 * N, K, BN, BK, LUT, dtype, TMA)
            gate = _turn(gate, even, odd, inputs, JOIN, dtype)
            even, odd = _weights(w, absmax, code, N + n0, k, 2 * N, K, BN, BK, LUT, dtype, TMA)
            up = _turn(up, even, odd, inputs, JOIN, dtype)
    release_next(PDL)
    gate = gate.to(dtype).to(tl.float32)
    act = gelu_tanh(gate) if GELU else silu(gate)
    value = (act.to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)).T
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    at = out + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(at, value.to(dtype), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def nf4_dequantise_kernel(
    w, absmax, code, out, N, K, BN: tl.constexpr, BK: tl.constexpr, LUT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[n, k] = code times absmax, rounded once; grid (N / BN, K / BK)."""
    n0 = tl.program_id(0) * BN
    k0 = tl.program_id(1) * BK
    await_inputs(PDL)
    release_next(PDL)
    even, odd = _weights(w, absmax, code, n0, k0, N, K, BN, BK, LUT, out.dtype.element_ty, 0)
    n = n0 + tl.arange(0, BN)
    at = out + n[:, None].to(tl.int64) * K + k0 + tl.arange(0, BK)[None, :]
    tl.store(at, tl.interleave(even, odd), mask=n[:, None] < N)


def nf4_matmul(x_MK: Tensor, leaf: Nf4, tile: Tile) -> Tensor:
    """Return [M, N] in the dtype of `x`, or fp32 partial sums [S, M, N] where the tile splits K.

    K must be a multiple of split * BK, BK of 64, and N of BN where the tile loads by TMA. The
    leaf's bias is not added.
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
        *nf4_operands(x_MK, leaf, tile, joins(tile)), leaf.absmax, leaf.code, out, M, N, K,
        K // tile.split, tile.BM, tile.BN, tile.BK, tile.tma, tile.stages, look_up(),
        joins(tile), DTYPES[leaf.dtype], pdl, num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def nf4_gated_matmul(x_MK: Tensor, leaf: Nf4, activation: str, tile: Tile) -> Tensor:
    """Return act(x gate^T) * (x up^T) as [M, N]; the rows of `leaf` are gate's, then up's.

    N must be a multiple of BN, K of BK and BK of 64; `activation` is silu, swish or
    gelu_pytorch_tanh. The leaf must have no bias.
    """
    (M, K), N = x_MK.shape, leaf.rows // 2
    assert N % tile.BN == 0, (N, tile)
    assert tile.split == 1, "partial sums cannot be activated"
    assert leaf.bias is None, "a bias comes before the activation"
    check_nf4(x_MK, leaf, tile)
    joined = pairs(tile)
    out, pdl = x_MK.new_empty(M, N), dependent(x_MK, M)
    nf4_gated_kernel[(N // tile.BN, triton.cdiv(M, tile.BM))](
        *nf4_operands(x_MK, leaf, tile, joined), leaf.absmax, leaf.code, out, M, N, K, tile.BM,
        tile.BN, tile.BK, activation == "gelu_pytorch_tanh", tile.tma, tile.stages,
        look_up(), joined, DTYPES[leaf.dtype], pdl,
        num_warps=tile.warps, launch_pdl=pdl,
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
