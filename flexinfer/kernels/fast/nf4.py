"""Skinny products with packed NF4 weights: dequantised in registers, read once, never written.

A byte holds the weights of inputs 2j (high half) and 2j + 1, so a turn makes two products: of the
even inputs with the high halves and of the odd ones with the low. `x` is read as words of two
inputs, which come apart in registers, so neither side is rearranged. Otherwise as gemm.py: split-K
partial sums for the kernel that consumes them, and a gated form.

Shape letters: M rows, N outputs, K inputs, G blocks of 64 inputs, S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flexinfer.kernels.fast.act import gelu_tanh, silu
from flexinfer.kernels.fast.gemm import Tile, _load
from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.nf4_lut import PLAIN, SHUFFLE, halves
from flexinfer.kernels.nf4 import Nf4

ROWS = 64
"""Up to how many rows a fused product is used by default: each further 64 dequantise anew."""
SPLITS = (8, 5, 4, 3, 2)
BLOCKS = 768
"""Blocks of an untuned product at most: five or six for each multiprocessor of a large device."""
DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


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
def _turn(acc, even, odd, x_even, x_odd):
    """Add the products of even and of odd inputs to acc [BN, BM]."""
    acc = tl.dot(even, x_even.T, acc, input_precision="ieee")
    return tl.dot(odd, x_odd.T, acc, input_precision="ieee")


@triton.jit(do_not_specialize=["M"])
def nf4_matmul_kernel(
    x, w, absmax, code, out, M, N, K, per,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    LUT: tl.constexpr, dtype: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m, n] = sum over inputs [s * per, (s + 1) * per); grid (N / BN, K / per, M / BM)."""
    n0 = tl.program_id(0) * BN
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    acc = tl.zeros([BN, BM], dtype=tl.float32)
    await_inputs(PDL)
    for k in tl.range(part * per, part * per + per, BK, num_stages=STAGES):
        even, odd = _weights(w, absmax, code, n0, k, N, K, BN, BK, LUT, dtype, TMA)
        words = _load(x, m0, k // 2, M, K // 2, BM, BK // 2, TMA)
        x_even, x_odd = _inputs(words, dtype)
        acc = _turn(acc, even, odd, x_even, x_odd)
    release_next(PDL)
    m = m0 + tl.arange(0, BM)
    n = n0 + tl.arange(0, BN)
    at = out + (part * M + m[:, None]).to(tl.int64) * N + n[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(at, acc.T.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M"])
def nf4_gated_kernel(
    x, w, absmax, code, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GELU: tl.constexpr, TMA: tl.constexpr,
    STAGES: tl.constexpr, LUT: tl.constexpr, dtype: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[m, n] = act(x w[n]) * (x w[N + n]), gate and up rounded first; grid (N / BN, M / BM)."""
    n0 = tl.program_id(0) * BN
    m0 = tl.program_id(1) * BM
    gate = tl.zeros([BN, BM], dtype=tl.float32)
    up = tl.zeros([BN, BM], dtype=tl.float32)
    await_inputs(PDL)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        words = _load(x, m0, k // 2, M, K // 2, BM, BK // 2, TMA)
        x_even, x_odd = _inputs(words, dtype)
        even, odd = _weights(w, absmax, code, n0, k, 2 * N, K, BN, BK, LUT, dtype, TMA)
        gate = _turn(gate, even, odd, x_even, x_odd)
        even, odd = _weights(w, absmax, code, N + n0, k, 2 * N, K, BN, BK, LUT, dtype, TMA)
        up = _turn(up, even, odd, x_even, x_odd)
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


def nf4_matmul(x_MK: Tensor, leaf: Nf4, tile: Tile, lut: int | None = None) -> Tensor:
    """Return [M, N] in the dtype of `x`, or fp32 partial sums [S, M, N] where the tile splits K.

    K must be a multiple of split * BK, BK of 64, and N of BN where the tile loads by TMA. The
    leaf's bias is not added. `lut`: see nf4_lut, None for the default.
    """
    (M, K), N = x_MK.shape, leaf.rows
    assert K % (tile.split * tile.BK) == 0, (K, tile)
    _check(x_MK, leaf, tile)
    if tile.split == 1:
        out = x_MK.new_empty(M, N)
    else:
        out = x_MK.new_empty(tile.split, M, N, dtype=torch.float32)
    pdl = dependent(x_MK, M)
    grid = (triton.cdiv(N, tile.BN), tile.split, triton.cdiv(M, tile.BM))
    nf4_matmul_kernel[grid](
        *_operands(x_MK, leaf, tile), leaf.absmax, leaf.code, out, M, N, K, K // tile.split,
        tile.BM, tile.BN, tile.BK, tile.tma, tile.stages, lut_of(lut),
        DTYPES[leaf.dtype], pdl, num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def nf4_gated_matmul(
    x_MK: Tensor, leaf: Nf4, activation: str, tile: Tile, lut: int | None = None
) -> Tensor:
    """Return act(x gate^T) * (x up^T) as [M, N]; the rows of `leaf` are gate's, then up's.

    N must be a multiple of BN, K of BK and BK of 64; `activation` is silu, swish or
    gelu_pytorch_tanh. The leaf must have no bias.
    """
    (M, K), N = x_MK.shape, leaf.rows // 2
    assert K % tile.BK == 0, (K, tile)
    assert N % tile.BN == 0, (N, tile)
    assert tile.split == 1, "partial sums cannot be activated"
    assert leaf.bias is None, "a bias comes before the activation"
    _check(x_MK, leaf, tile)
    out, pdl = x_MK.new_empty(M, N), dependent(x_MK, M)
    nf4_gated_kernel[(N // tile.BN, triton.cdiv(M, tile.BM))](
        *_operands(x_MK, leaf, tile), leaf.absmax, leaf.code, out, M, N, K, tile.BM, tile.BN,
        tile.BK, activation == "gelu_pytorch_tanh", tile.tma, tile.stages,
        lut_of(lut), DTYPES[leaf.dtype], pdl, num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def nf4_dequantise(leaf: Nf4) -> Tensor:
    """Return `leaf.weight()` [N, K], the same bits, in one pass."""
    N, K = leaf.rows, leaf.packed.shape[1] * 2
    out = torch.empty(N, K, dtype=leaf.dtype, device=leaf.packed.device)
    pdl = dependent(out, 1)
    nf4_dequantise_kernel[(triton.cdiv(N, 64), K // 64)](
        leaf.packed, leaf.absmax, leaf.code, out, N, K, 64, 64, lut_of(None), pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out


def lut_of(wanted: int | None) -> int:
    """Return which look-up to use: the exact one in registers; the interpreter runs no PTX."""
    if wanted is not None:
        return wanted
    return PLAIN if triton.knobs.runtime.interpret else SHUFFLE


def untuned(rows: int, outputs: int, inputs: int, *, split: bool) -> Tile | None:
    """Return a tile that fits any device, None where the product is for cuBLAS, dequantised.

    A block takes 64 outputs and all rows with two warps, whose products take their operands from
    registers: no weight goes through shared memory once it is dequantised. K is split, where the
    consumer adds partial sums, as far as there are no more than BLOCKS blocks.
    """
    BK = 128 if rows <= 32 and inputs % 128 == 0 else 64
    if rows > ROWS or inputs % BK:
        return None
    blocks, turns = -(-outputs // 64), inputs // BK
    fit = (s for s in SPLITS if split and turns % s == 0 and blocks * s <= BLOCKS)
    BM = 16 if rows <= 16 else 32 if rows <= 32 else 64
    return Tile(BM, 64, BK, next(fit, 1), 2, 3 if BK == 128 else 4, 0)


def _check(x_MK: Tensor, leaf: Nf4, tile: Tile) -> None:
    """Assert what the kernels take for granted."""
    assert x_MK.dtype == leaf.dtype, (x_MK.dtype, leaf.dtype)
    assert x_MK.is_contiguous(), "rows must be contiguous"
    assert leaf.packed.is_contiguous(), "bytes must be row-major"
    assert leaf.absmax.is_contiguous(), "scales must be row-major"
    assert tile.BK % 64 == 0, tile


def _operands(x_MK: Tensor, leaf: Nf4, tile: Tile) -> tuple[object, object]:
    """Return what the kernel loads from, `x` as words: descriptors with TMA, tensors without."""
    words = x_MK.view(torch.int64 if x_MK.dtype == torch.float32 else torch.int32)
    if not tile.tma:
        return words, leaf.packed
    return (
        TensorDescriptor.from_tensor(words, [tile.BM, tile.BK // 2]),
        TensorDescriptor.from_tensor(leaf.packed, [tile.BN, tile.BK // 2]),
    )
