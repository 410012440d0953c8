"""Paged prefill attention: tiles of queries of one sequence each, over that sequence's pages.

Queries are read and written where they lie among the packed tokens; keys and values come from
pages, so earlier chunks and shared prompts need no copy. Turns that every query of the block sees
whole skip the mask. Online softmax: Milakov and Gimelshein 2018; tiling: "FlashAttention-2", Dao
2023.

Shape letters: T packed tokens, N tiles of Q queries, H query heads, G kv heads, D head dim, P page
columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.attention import LOG2E, slots_of
from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next


class PrefillTile(NamedTuple):
    """Queries a block (divides Q), keys a turn (divisor or multiple of a page), warps, stages."""

    BM: int
    BN: int
    warps: int
    stages: int


@triton.jit
def _turns(
    queries, best, total, acc, k_pool, v_pool, base, pages, column, position, start, end,
    SCALE: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    WINDOW: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take the turns [start, end) into the softmax state; unmasked ones are seen whole."""
    d = tl.arange(0, D)
    for turn in tl.range(start, end, num_stages=STAGES):
        at = base + slots_of(pages, column, turn, PAGE, BN)[:, None] * D + d[None, :]
        score = tl.dot(queries, tl.load(k_pool + at).T, input_precision="ieee") * (SCALE * LOG2E)
        if MASKED:
            key = (turn * BN + tl.arange(0, BN))[None, :]
            seen = key <= position[:, None]
            if WINDOW > 0:
                seen = seen & (position[:, None] - key < WINDOW)
            score = tl.where(seen, score, -1.0e30)
        top = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - top[:, None])
        if MASKED:
            weight = tl.where(score > -0.9e30, weight, 0.0)
        shrink = tl.exp2(best - top)
        total = total * shrink + tl.sum(weight, 1)
        values = tl.load(v_pool + at)
        acc = tl.dot(weight.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        best = top
    return best, total, acc


@triton.jit
def prefill_kernel(
    q, k_pool, v_pool, out, source, positions, table, pool_rows, table_stride,
    SCALE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, Q: tl.constexpr,
    PAGE: tl.constexpr, P: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    WINDOW: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend BM queries of one head; grid (N * Q / BM, H). Padding (position -1) is not written."""
    block = tl.program_id(0)
    h = tl.program_id(1)
    tile = (block // (Q // BM)).to(tl.int64)
    await_inputs(PDL)
    release_next(PDL)
    at = tile * Q + (block % (Q // BM)) * BM + tl.arange(0, BM)
    position = tl.load(positions + at).to(tl.int32)
    last = tl.max(position, 0)
    if last < 0:
        return
    lowest = tl.min(tl.where(position < 0, 2147483647, position), 0)
    d = tl.arange(0, D)
    row = tl.load(source + at) * H + h
    at_q = row[:, None] * D + d[None, :]
    queries = tl.load(q + at_q)
    column = tl.arange(0, P)
    row_of_pages = table + tile * table_stride
    pages = tl.load(row_of_pages + column, mask=column < table_stride, other=0)
    base = (h // (H // G)).to(tl.int64) * pool_rows * D
    end = last // BN + 1
    whole_end = (lowest + 1) // BN
    start = 0
    whole_start = 0
    if WINDOW > 0:
        start = tl.maximum(lowest - WINDOW + 1, 0) // BN
        whole_start = tl.maximum(last - WINDOW + BN, 0) // BN
        whole_start = tl.minimum(tl.maximum(whole_start, start), end)
        whole_end = tl.maximum(whole_end, whole_start)
    whole_end = tl.minimum(whole_end, end)
    best = tl.full([BM], -1.0e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    if WINDOW > 0:
        best, total, acc = _turns(
            queries, best, total, acc, k_pool, v_pool, base, pages, column, position, start,
            whole_start, SCALE, D, PAGE, BN, WINDOW, True, STAGES,
        )  # fmt: skip
    best, total, acc = _turns(
        queries, best, total, acc, k_pool, v_pool, base, pages, column, position, whole_start,
        whole_end, SCALE, D, PAGE, BN, WINDOW, False, STAGES,
    )  # fmt: skip
    best, total, acc = _turns(
        queries, best, total, acc, k_pool, v_pool, base, pages, column, position, whole_end, end,
        SCALE, D, PAGE, BN, WINDOW, True, STAGES,
    )  # fmt: skip
    mixed = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + at_q, mixed, mask=(position >= 0)[:, None])


def paged_prefill(
    q_THD: Tensor,
    pools: tuple[Tensor, Tensor],
    source_NQ: Tensor,
    positions_NQ: Tensor,
    table_NP: Tensor,
    page: int,
    window: int | None,
    scale: float,
    tile: PrefillTile,
) -> Tensor:
    """Return [T, H, D] of the tokens that occur in a tile.

    `source` int64 is the packed token of each query and `positions` int64 its position, -1 for
    padding; `table` int32 holds the page-table row of each tile; pools are [1, G, rows, D].
    """
    k_pool, v_pool = pools
    _, H, D = q_THD.shape
    N, Q = source_NQ.shape
    assert Q % tile.BM == 0, (Q, tile)
    assert page % tile.BN == 0 or tile.BN % page == 0, (page, tile)
    out, pdl = torch.empty_like(q_THD), dependent(q_THD, q_THD.shape[0])
    prefill_kernel[(N * (Q // tile.BM), H)](
        q_THD, k_pool, v_pool, out, source_NQ, positions_NQ, table_NP, k_pool.shape[2],
        table_NP.stride(0), scale, H, k_pool.shape[1], D, Q, page,
        triton.next_power_of_2(table_NP.shape[1]), tile.BM, tile.BN, window or 0, tile.stages, pdl,
        num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out
