"""The rest of a side path: add partial sums, multiply the ranks by B, add the base's product.

Rounded where the plain form rounds (kernels/lora.py): the base's product, the product by A, the one
by B, and their sum. B is read before the wait for the product: nothing but a refresh writes it.
B of a group is block-diagonal: a block of outputs reads the ranks of its own member and no other's.

Shape letters: M rows, N outputs, R ranks (of all members of a group), S splits.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.act import gelu_tanh, silu
from flexinfer.kernels.fast.launch import ask_shared, await_inputs, dependent, release_next

BM, BN = 16, 64
"""Rows and outputs of a block: small, so that few rows make enough blocks to hide latency."""
BR = 64
"""Ranks of a turn, at most: more would not fit the registers."""


@triton.jit
def _sum(p, m, n, end, M, stride, SPLIT: tl.constexpr, dtype: tl.constexpr):
    """Return partial sums at rows `m` and columns `n` < `end`, added and rounded to `dtype`."""
    at = p + m[:, None].to(tl.int64) * stride + n[None, :]
    live = (m[:, None] < M) & (n[None, :] < end)
    total = tl.load(at, mask=live, other=0.0).to(tl.float32)
    for s in tl.static_range(1, SPLIT):
        total += tl.load(at + s * M.to(tl.int64) * stride, mask=live, other=0.0).to(tl.float32)
    return total.to(dtype)


@triton.jit
def _columns(b, n, end, r, last, R):
    """Return B [BN, BR] at outputs `n` < `end` and ranks `r` < `last`, zero beyond."""
    live = (n[:, None] < end) & (r[None, :] < last)
    return tl.load(b + n[:, None].to(tl.int64) * R + r[None, :], mask=live, other=0.0)


@triton.jit
def _adapted(
    p, b, b_tile, m, n, end, r, last, M, N, R, stride,
    BR: tl.constexpr, MOST: tl.constexpr, SPLIT: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Return base + side path of one member at rows `m` and columns `n`, rounded, in fp32.

    `b_tile` is B at the first BR of its ranks `r`; MOST is the most ranks of any member.
    """
    base = _sum(p, m, n, end, M, stride, SPLIT, dtype)
    low = _sum(p, m, N + r, N + last, M, stride, SPLIT, dtype)
    side = tl.dot(low, b_tile.T, input_precision="ieee")
    for turn in tl.static_range(BR, MOST, BR):
        low = _sum(p, m, N + turn + r, N + last, M, stride, SPLIT, dtype)
        b_tile = _columns(b, n, end, turn + r, last, R)
        side = tl.dot(low, b_tile.T, side, input_precision="ieee")
    return (base.to(tl.float32) + side.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)


@triton.jit(do_not_specialize=["M"])
def lora_add_kernel(
    p, b, out, M, N, R, stride, BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    MOST: tl.constexpr, WIDTHS: tl.constexpr, RANKS: tl.constexpr, SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out = base + side path; grid (sum of each member's WIDTH / BN, M / BM)."""
    block = tl.program_id(0)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n0, end, r0, last = 0, 0, 0, 0
    first, column, rank = 0, 0, 0
    for i in tl.static_range(len(WIDTHS)):
        mine = block >= first
        n0 = tl.where(mine, column + (block - first) * BN, n0)
        end = tl.where(mine, column + WIDTHS[i], end)
        r0 = tl.where(mine, rank, r0)
        last = tl.where(mine, rank + RANKS[i], last)
        first += (WIDTHS[i] + BN - 1) // BN
        column += WIDTHS[i]
        rank += RANKS[i]
    n = n0 + tl.arange(0, BN)
    r = r0 + tl.arange(0, BR)
    dtype: tl.constexpr = out.dtype.element_ty
    b_tile = _columns(b, n, end, r, last, R)
    await_inputs(PDL)
    release_next(PDL)
    total = _adapted(
        p, b, b_tile, m, n, end, r, last, M, N, R, stride, BR, MOST, SPLIT, dtype
    )  # fmt: skip
    at = out + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(at, total.to(dtype), mask=(m[:, None] < M) & (n[None, :] < end))


@triton.jit(do_not_specialize=["M"])
def lora_gated_kernel(
    p, b, out, M, N, R, stride, BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    MOST: tl.constexpr, GATE: tl.constexpr, SPLIT: tl.constexpr, GELU: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out = act(gate) * up, each base + side path; the first GATE ranks are gate's.

    Grid (N / BN, M / BM); gate has columns [0, N) of `p` and up has [N, 2N).
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    r = tl.arange(0, BR)
    dtype: tl.constexpr = out.dtype.element_ty
    b_gate = _columns(b, n, N, r, GATE, R)
    b_up = _columns(b, N + n, 2 * N, GATE + r, R, R)
    await_inputs(PDL)
    release_next(PDL)
    gate = _adapted(
        p, b, b_gate, m, n, N, r, GATE, M, 2 * N, R, stride, BR, MOST, SPLIT, dtype
    )  # fmt: skip
    up = _adapted(
        p, b, b_up, m, N + n, 2 * N, GATE + r, R, M, 2 * N, R, stride, BR, MOST, SPLIT, dtype
    )  # fmt: skip
    act = (gelu_tanh(gate) if GELU else silu(gate)).to(dtype).to(tl.float32)
    at = out + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(at, (act * up).to(dtype), mask=(m[:, None] < M) & (n[None, :] < N))


def lora_add(partials: Tensor, b_NR: Tensor, widths: Sequence[int], ranks: Sequence[int]) -> Tensor:
    """Return base + side path, [M, N] in the dtype of `b`, from what `lora_matmul` returned.

    `widths` and `ranks` are those of a group's members, in order: `b` is zero outside the block of
    each member's outputs and ranks, and not read there.
    """
    M, N, R = partials.shape[1], *b_NR.shape
    _check(partials, b_NR, widths, ranks)
    out, pdl = b_NR.new_empty(M, N), dependent(b_NR, M)
    grid = (sum(triton.cdiv(width, BN) for width in widths), triton.cdiv(M, BM))
    lora_add_kernel[grid](
        partials, b_NR, out, M, N, R, partials.stride(1), BM, BN, _turn(ranks), max(ranks),
        tuple(widths), tuple(ranks), len(partials), pdl, num_warps=_warps(ranks), launch_pdl=pdl,
    )  # fmt: skip
    return out


def lora_gated(partials: Tensor, b_2NR: Tensor, activation: str, ranks: tuple[int, int]) -> Tensor:
    """Return act(gate) * up, [M, N] in the dtype of `b`, gate and up each base + side path.

    `ranks` are gate's and up's; `activation` is silu or gelu_pytorch_tanh. See `lora_add`.
    """
    M, N, R = partials.shape[1], b_2NR.shape[0] // 2, b_2NR.shape[1]
    _check(partials, b_2NR, (N, N), ranks)
    out, pdl = b_2NR.new_empty(M, N), dependent(b_2NR, M)
    launched = lora_gated_kernel[(triton.cdiv(N, BN), triton.cdiv(M, BM))](
        partials, b_2NR, out, M, N, R, partials.stride(1), BM, BN, _turn(ranks), max(ranks),
        ranks[0], len(partials), activation == "gelu_pytorch_tanh", pdl,
        num_warps=_warps(ranks), launch_pdl=pdl,
    )  # fmt: skip
    if pdl:
        ask_shared(launched)
    return out


def _turn(ranks: Sequence[int]) -> int:
    """Return the ranks of a turn: those of any member, but no fewer than a tensor core takes."""
    return next((turn for turn in (16, 32) if turn >= max(ranks)), BR)


def _warps(ranks: Sequence[int]) -> int:
    """Return the warps of a block: more where a turn is so wide that registers would spill."""
    return 8 if _turn(ranks) == BR else 4


def _check(partials: Tensor, b_NR: Tensor, widths: Sequence[int], ranks: Sequence[int]) -> None:
    """Fail unless everything fits together."""
    N, R = b_NR.shape
    assert b_NR.is_contiguous(), "B must be row-major"
    assert partials.shape[2] == N + R, (partials.shape, b_NR.shape)
    assert partials.stride(2) == 1, "partial sums must be row-major"
    assert partials.stride(0) == partials.shape[1] * partials.stride(1), "splits must be adjacent"
    assert sum(widths) == N, (widths, N)
    assert sum(ranks) == R, (ranks, R)
    assert len(widths) == len(ranks), (widths, ranks)
