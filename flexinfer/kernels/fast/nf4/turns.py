"""What a turn of a product with packed NF4 weights does, inside kernels: load, look up, multiply.

A byte holds the weights of inputs 2j (high half) and 2j + 1. Form APART, for few rows: a turn makes
two products, of the even inputs with the high halves and of the odd ones with the low; `x` is read
as words of two inputs, which come apart in registers, so neither side is rearranged. The warps of a
block share out a turn's inputs (W ways) and add their sums at the end: so they can be many without
many partial sums, and no warp reads what another does. Form LEFT, for more rows: the halves are
joined as the left operand, and `x` goes from global to shared memory and from there to the tensor
cores as it is; it wants a warp group (4 warps) and a block of 64 rows of weights.

Shape letters: M rows, N outputs, K inputs, G blocks of 64 inputs, W ways.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flexinfer.kernels.fast.nf4.lut import halves
from flexinfer.kernels.fast.tile import load_block


@triton.jit
def inputs_of(words, dtype: tl.constexpr):
    """Return the even and the odd inputs of words of two."""
    if dtype == tl.float32:
        even, odd = words.to(tl.int32), (words >> 32).to(tl.int32)
    else:
        even, odd = words.to(tl.int16), (words >> 16).to(tl.int16)
    return even.to(dtype, bitcast=True), odd.to(dtype, bitcast=True)


@triton.jit
def weights_of(
    w, absmax, table, n0, k, N, K, BN: tl.constexpr, BK: tl.constexpr, LUT: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Return the weights [BN, BK / 2] of even and of odd inputs from input `k` on."""
    G: tl.constexpr = BK // 64
    bytes_ = load_block(w, n0, k // 2, N, K // 2, BN, BK // 2, 0)
    n = n0 + tl.arange(0, BN)
    at = absmax + n[:, None].to(tl.int64) * (K // 64) + k // 64 + tl.arange(0, G)[None, :]
    scale = tl.load(at, mask=n[:, None] < N, other=0.0)
    return halves(bytes_, scale, table, BN, G, LUT, dtype)


@triton.jit
def shared_out(half, R: tl.constexpr, C: tl.constexpr, WAYS: tl.constexpr):
    """Return a matrix [R, C] as [W, R, C / W], a way a share of the columns."""
    return tl.permute(tl.reshape(half, [R, WAYS, C // WAYS]), (1, 0, 2))


@triton.jit
def turn_apart(
    acc, even, odd, words, BM: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr,
    WAYS: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Add to acc [W, BN, BM] the products of weights [BN, BH] with words of inputs [BM, BH]."""
    x_even, x_odd = inputs_of(words, dtype)
    x_even = tl.permute(shared_out(x_even, BM, BH, WAYS), (0, 2, 1))
    x_odd = tl.permute(shared_out(x_odd, BM, BH, WAYS), (0, 2, 1))
    acc = tl.dot(shared_out(even, BN, BH, WAYS), x_even, acc, input_precision="ieee")
    return tl.dot(shared_out(odd, BN, BH, WAYS), x_odd, acc, input_precision="ieee")


@triton.jit
def share(
    x, w, absmax, table, n0, m0, first, per, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, LUT: tl.constexpr,
    FORM: tl.constexpr, WAYS: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Return the products [BM, BN] over `per` inputs from `first` on, or those before K.

    `x`: words if APART.
    """
    end = tl.minimum(first + per, K)
    if FORM == 0:
        sums = tl.zeros([WAYS, BN, BM], dtype=tl.float32)
        for k in tl.range(first, end, BK, num_stages=STAGES):
            even, odd = weights_of(w, absmax, table, n0, k, N, K, BN, BK, LUT, dtype)
            words = load_block(x, m0, k // 2, M, K // 2, BM, BK // 2, 0)
            sums = turn_apart(sums, even, odd, words, BM, BN, BK // 2, WAYS, dtype)
        acc = tl.sum(sums, 0)
    else:
        acc = tl.zeros([BN, BM], dtype=tl.float32)
        for k in tl.range(first, end, BK, num_stages=STAGES):
            even, odd = weights_of(w, absmax, table, n0, k, N, K, BN, BK, LUT, dtype)
            inputs = load_block(x, m0, k, M, K, BM, BK, 0)
            joined = tl.reshape(tl.join(even, odd), [BN, BK])
            acc = tl.dot(joined, inputs.T, acc, input_precision="ieee")
    return acc.T


@triton.jit
def store_block(
    sums, out, m0, row, column, part, M, rows, stride, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Write sums [BM, BN]: rows below `rows` of a matrix from `row`, to columns from `column`."""
    m = m0 + tl.arange(0, BM)
    n = tl.arange(0, BN)
    at = out + (part * M + m[:, None]).to(tl.int64) * stride + column + n[None, :]
    live = (m[:, None] < M) & (row + n[None, :] < rows)
    tl.store(at, sums.to(out.dtype.element_ty), mask=live)
