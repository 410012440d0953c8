"""Paged decode attention: one query a sequence, keys and values read once, page by page.

A block serves all query heads of one kv head (a group) over one share of the sequence; with more
than one share (split KV, for models with few kv heads) a second kernel joins them by their maxima
and sums. Online softmax: Milakov and Gimelshein 2018; split KV: "Flash-Decoding", Dao et al. 2023.

Shape letters: B rows, H query heads, G kv heads, D head dim, P page columns, S shares.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


class DecodeTile(NamedTuple):
    """Keys a turn (a divisor or multiple of the page), shares of a sequence, warps, stages."""

    BN: int
    split: int
    warps: int
    stages: int


@triton.jit
def slots_of(pages, column, turn, PAGE: tl.constexpr, BN: tl.constexpr):
    """Return the pool rows int64 [BN] of a turn's keys; `pages` is the sequence's whole row.

    A turn is part of one page, or several pages whole.
    """
    key = tl.arange(0, BN)
    if BN <= PAGE:
        page = tl.sum(tl.where(column == (turn * BN) // PAGE, pages, 0), 0)
        slot = page.to(tl.int64) * PAGE + (turn * BN) % PAGE + key
    else:
        slot = tl.zeros([BN], tl.int64)
        for i in tl.static_range(BN // PAGE):
            at = turn * (BN // PAGE) + i
            page = tl.sum(tl.where(column == at, pages, 0), 0).to(tl.int64)
            slot = tl.where(key // PAGE == i, page * PAGE + key % PAGE, slot)
    return slot


@triton.jit
def decode_kernel(
    q, k_pool, v_pool, out, partial, stats, table, positions, pool_rows, table_stride,
    SCALE: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, P: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to positions (p - WINDOW, p] of each row (WINDOW 0: all up to p); grid (B, G, SPLIT).

    The table row is loaded once, before the loop: a load inside would keep K and V from being
    pipelined. `stats` takes each share's maximum (log2 domain) and sum.
    """
    b = tl.program_id(0)
    g = tl.program_id(1)
    share = tl.program_id(2)
    group: tl.constexpr = H // G
    column = tl.arange(0, P)
    pages = tl.load(
        table + b.to(tl.int64) * table_stride + column, mask=column < table_stride, other=0
    )
    position = tl.load(positions + b).to(tl.int32)
    first = tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else 0
    turn0 = first // BN
    turns = position // BN + 1 - turn0
    per = tl.cdiv(turns, SPLIT)
    start = turn0 + share * per
    end = tl.minimum(start + per, turn0 + turns)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, D)
    at_q = (b.to(tl.int64) * H + g * group + row[:, None]) * D + d[None, :]
    queries = tl.load(q + at_q, mask=row[:, None] < group, other=0.0)
    base = g.to(tl.int64) * pool_rows * D
    best = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for turn in tl.range(start, end, num_stages=STAGES):
        key = turn * BN + tl.arange(0, BN)
        seen = (key <= position) & (key >= first)
        at = base + slots_of(pages, column, turn, PAGE, BN)[:, None] * D + d[None, :]
        keys = tl.load(k_pool + at, mask=seen[:, None], other=0.0, eviction_policy="evict_first")
        values = tl.load(v_pool + at, mask=seen[:, None], other=0.0, eviction_policy="evict_first")
        score = tl.dot(queries, keys.T, input_precision="ieee") * (SCALE * LOG2E)
        score = tl.where(seen[None, :], score, -1.0e30)
        top = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - top[:, None])
        shrink = tl.exp2(best - top)
        total = total * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        best = top
    if SPLIT == 1:
        tl.store(
            out + at_q, (acc / total[:, None]).to(out.dtype.element_ty), mask=row[:, None] < group
        )
    else:
        at_s = (b.to(tl.int64) * SPLIT + share) * H + g * group + row
        tl.store(partial + at_s[:, None] * D + d[None, :], acc, mask=row[:, None] < group)
        tl.store(stats + at_s * 2, best, mask=row < group)
        tl.store(stats + at_s * 2 + 1, total, mask=row < group)


@triton.jit
def join_kernel(partial, stats, out, H: tl.constexpr, D: tl.constexpr, SPLIT: tl.constexpr):
    """Join the shares of one head of one row; grid (B, H). An empty share weighs nothing."""
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, D)
    best = tl.load(stats + (b * SPLIT * H + h) * 2)
    for s in tl.static_range(1, SPLIT):
        best = tl.maximum(best, tl.load(stats + ((b * SPLIT + s) * H + h) * 2))
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for s in tl.static_range(SPLIT):
        at = (b * SPLIT + s) * H + h
        factor = tl.exp2(tl.load(stats + at * 2) - best)
        total += factor * tl.load(stats + at * 2 + 1)
        acc += factor * tl.load(partial + at * D + d)
    tl.store(out + (b * H + h) * D + d, (acc / total).to(out.dtype.element_ty))


def paged_decode(
    q_BHD: Tensor,
    pools: tuple[Tensor, Tensor],
    table_BP: Tensor,
    positions_B: Tensor,
    page: int,
    window: int | None,
    scale: float,
    tile: DecodeTile,
) -> Tensor:
    """Return [B, H, D]; `table` int32 rows of pages, `positions` int64 of the queries.

    The pools are [1, G, N, D]; a query sees `position - kv < window` (None: everything before it).
    """
    k_pool, v_pool = pools
    B, H, D = q_BHD.shape
    G, columns = k_pool.shape[1], table_BP.shape[1]
    assert page % tile.BN == 0 or tile.BN % page == 0, (page, tile)
    out = torch.empty_like(q_BHD)
    shares = (B, tile.split, H)
    partial = out if tile.split == 1 else q_BHD.new_empty(*shares, D, dtype=torch.float32)
    stats = out if tile.split == 1 else q_BHD.new_empty(*shares, 2, dtype=torch.float32)
    decode_kernel[(B, G, tile.split)](
        q_BHD, k_pool, v_pool, out, partial, stats, table_BP, positions_B, k_pool.shape[2],
        table_BP.stride(0), scale, H, G, D, page, triton.next_power_of_2(columns), tile.BN,
        tile.split, window or 0, max(16, triton.next_power_of_2(H // G)), tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
    if tile.split > 1:
        join_kernel[(B, H)](partial, stats, out, H, D, tile.split, num_warps=2)
    return out
