"""Prefill attention over tiles of packed tokens, by definition; what no query may see is large."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flexinfer.attention.spec import LayerSpec
from flexinfer.kernels.fast.prefill import PrefillTile, paged_prefill
from tests.support.triton_interpreter import close, normal
from tests.support.triton_pages import Scattered, spec_of

Q = 32
CHUNKS = ((0, 40), (7, 9), (16, 48), (33, 34), (0, 1), (50, 90))
"""Half-open positions of the chunks, in packed order: one tile, parts of tiles, several tiles."""


def check(
    spec: LayerSpec,
    tile: PrefillTile,
    page: int = 16,
    chunks: tuple[tuple[int, int], ...] = CHUNKS,
    tolerance: float = 1e-5,
) -> None:
    """Fail unless every token of every chunk gets what the definition says."""
    first, last = tuple(start for start, _ in chunks), tuple(end - 1 for _, end in chunks)
    held = Scattered(spec, first, last, page, poison=1e4)
    source, positions, owners, packed = [], [], [], 0
    for row, (start, end) in enumerate(chunks):
        for at in range(start, end, Q):
            valid = min(end - at, Q)
            place = packed + at - start
            source.append([place + min(i, valid - 1) for i in range(Q)])
            positions.append([at + i if i < valid else -1 for i in range(Q)])
            owners.append(row)
        packed += end - start
    q = normal(packed, spec.heads, spec.head_dim)
    found = paged_prefill(
        q, held.pools, torch.tensor(source), torch.tensor(positions), held.table[owners], page,
        spec.window, spec.scale, tile,
    )  # fmt: skip
    expected = [
        held.expected(row, position, q[at])
        for at, (row, position) in enumerate(
            (row, position) for row, chunk in enumerate(chunks) for position in range(*chunk)
        )
    ]
    close(found, torch.stack(expected), tolerance)


@pytest.mark.parametrize("window", [None, 1, 15, 16, 17, 33, 200])
def test_windows(window: int | None) -> None:
    """Edges inside turns and on their edges; turns seen whole before, between and after them."""
    check(spec_of(1, 1, 16, window), PrefillTile(16, 16, 4, 2))


@pytest.mark.parametrize("tile", [(16, 32), (32, 16), (32, 64)])
@pytest.mark.parametrize("window", [None, 17])
def test_tiles(window: int | None, tile: tuple[int, int]) -> None:
    check(spec_of(1, 1, 16, window), PrefillTile(*tile, 4, 2))


@pytest.mark.parametrize("page", [8, 16, 32, 64])
@pytest.mark.parametrize("window", [None, 20])
def test_pages(page: int, window: int | None) -> None:
    """Turns of several pages, of one, and of a part of one."""
    check(spec_of(1, 1, 16, window), PrefillTile(16, 32, 4, 2), page)


@pytest.mark.parametrize("heads", [(2, 2), (3, 1), (8, 1), (6, 2)])
def test_query_heads_a_kv_head(heads: tuple[int, int]) -> None:
    check(spec_of(*heads, 16), PrefillTile(16, 16, 4, 2), chunks=CHUNKS[1:4])


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_head_dims(head_dim: int) -> None:
    check(spec_of(2, 1, head_dim), PrefillTile(16, 16, 4, 2), chunks=((3, 20), (0, 17)))


def test_scores_of_any_size() -> None:
    spec = replace(spec_of(2, 1, 16), scale=30.0)
    check(spec, PrefillTile(16, 16, 4, 2), tolerance=1e-3)
