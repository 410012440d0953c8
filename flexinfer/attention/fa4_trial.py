"""A trial of FA4's prefill against plain attention: what versions promise, a run has to show."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.fa4 import Fa4Kernels, Varlen
from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import LayerSpec

ERROR_LIMIT = 0.05
"""Absolute, in 16 bits against plain attention in 16 bits on unit Gaussian inputs."""

FIRST, LATER, BEHIND = 37, 300, 200
"""Queries of a first chunk that ends inside a page, queries of a later one, keys before that."""

WIDEST = 4096
"""The widest window, in tokens, whose edge is tried."""

QUERIES = 128
"""Queries of a tile: the later chunk has three."""


def trial(
    varlen: Varlen,
    spec: LayerSpec,
    page: int,
    dtype: torch.dtype,
    device: torch.device,
    idle: int = 0,
) -> float:
    """Run layers like `spec` on two chunks; return the largest error against plain attention.

    `idle` entries without queries follow. This compiles what prefill will run. Of a window up to
    WIDEST both keys at its edge weigh as much as all others. Raises whatever FA4 raises.
    """
    case = _drawn(spec, page, dtype, device)
    rows, positions, window = case.rows, case.positions, spec.window
    tiling, plain = _tiling(positions), DenseKernels(page)
    kernels = Fa4Kernels(plain, varlen, page)
    seen = plain.tile_mask(rows, positions, case.logical, window)
    expected = plain.tiles(spec)(case.q, case.k, case.v, tiling, seen)
    rows, positions = pad(rows, (0, 0, 0, idle)), pad(positions, (0, 0, 0, idle), value=-1)
    spans = kernels.tile_mask(rows, positions, case.logical, window)
    found = kernels.tiles(spec)(case.q, case.k, case.v, tiling, spans)
    return float((found.float() - expected.float()).abs().nan_to_num(nan=torch.inf).max())


class _Case(NamedTuple):
    """Packed queries, KV pools, a page-table row and positions a tile, and pages' places."""

    q: Tensor
    k: Tensor
    v: Tensor
    rows: Tensor
    positions: Tensor
    logical: Tensor


def _drawn(spec: LayerSpec, page: int, dtype: torch.dtype, device: torch.device) -> _Case:
    """Draw two sequences whose pages lie in no order, and cut their chunks into tiles."""
    draw = torch.Generator().manual_seed(0)
    edge = spec.window if spec.window is not None and spec.window <= WIDEST else None
    cached = (edge or 0) + BEHIND
    columns = -(-(cached + LATER) // page)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device, dtype)

    k, v = (random(1, spec.kv_heads, (2 * columns + 1) * page, spec.head_dim) for _ in range(2))
    pages = torch.arange(1, 2 * columns + 1, device=device).view(2, columns).flip(1).int()
    if edge is not None:
        _mark(k, v, pages[1], page, cached - edge, 2.0 * edge)
    tiles = -(-LATER // QUERIES)
    inside = torch.arange(tiles * QUERIES, device=device)
    first = torch.where(inside[:QUERIES] < FIRST, inside[:QUERIES], -1)
    later = torch.where(inside < LATER, cached + inside, -1)
    logical = torch.zeros(2 * columns + 1, dtype=torch.int32, device=device)
    logical[pages.long()] = torch.arange(columns, dtype=torch.int32, device=device)
    q = random(FIRST + LATER, spec.heads, spec.head_dim)
    positions = torch.cat((first, later)).view(-1, QUERIES)
    return _Case(q, k, v, pages[[0] + [1] * tiles], positions, logical)


def _mark(k: Tensor, v: Tensor, pages: Tensor, page: int, last_hidden: int, value: float) -> None:
    """Give the last key that the later chunk's first query does not see, and the next, much value.

    No other query of the chunk sees them. A key of zeros weighs about one in as many as are seen,
    where the scale is about head dim^-0.5 as in every model that FA4 is for.
    """
    for at, sign in ((last_hidden, -1.0), (last_hidden + 1, 1.0)):
        slot = int(pages[at // page]) * page + at % page
        k[:, :, slot], v[:, :, slot] = 0.0, sign * value


def _tiling(positions: Tensor) -> Tiling:
    """Return where packed tokens lie in tiles that are filled from the front."""
    real = (positions >= 0).flatten()
    source = (real.cumsum(0) - 1).view_as(positions)
    return Tiling(source, real.nonzero()[:, 0])
