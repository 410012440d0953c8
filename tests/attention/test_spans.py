"""Chunks joined from tiles, against the chunks that the tiles were cut from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.attention.spans import Spans, spans_of
from flexinfer.core.sequence import Group
from flexinfer.core.sequence import Sequence as Row
from flexinfer.core.step import Chunk
from flexinfer.engine.steps.batch import HostBatch, prefill_batch
from flexinfer.engine.steps.prefill import whole

PAGE, COLUMNS, SLOTS, TILE = 8, 12, 6, 32
CHUNKS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 36)), min_size=1, max_size=SLOTS)


def batch_of(spans: Sequence[tuple[int, int]], tile: int = TILE) -> HostBatch:
    """Pack chunks (start, length), each of another slot; only the last may go on later."""
    chunks = []
    for slot, (start, length) in enumerate(spans):
        row = Row(Group(tuple(range(100))), 1)
        row.slot = slot
        chunks.append(Chunk(row, start, start + length, slot < len(spans) - 1 or slot == 0))
    return prefill_batch(chunks, tile, SLOTS, SLOTS)


def table() -> torch.Tensor:
    """Return page-table rows of all slots; the pad slot's lists the scratch page."""
    rows = torch.randperm(SLOTS * COLUMNS).view(SLOTS, COLUMNS) + 1
    return torch.cat((rows, torch.zeros(1, COLUMNS, dtype=torch.int64))).int()


def joined(host: HostBatch, rows: torch.Tensor) -> Spans:
    """Join a batch's tiles."""
    return spans_of(rows[host.tile_slots], torch.from_numpy(host.tiles[1]), PAGE)


def filled(spans: Spans) -> list[tuple[int, int, int, list[int]]]:
    """Return (first query, end, keys seen, pages) of the entries that have queries."""
    edges, seen = spans.starts.tolist(), spans.seen.tolist()
    return [
        (start, end, seen[entry], spans.pages[entry].tolist())
        for entry, (start, end) in enumerate(pairwise(edges))
        if start < end
    ]


@given(CHUNKS)
def test_each_chunk_is_one_entry(chunks: list[tuple[int, int]]) -> None:
    rows, at, expected = table(), 0, []
    for slot, (start, length) in enumerate(chunks):
        expected.append((at, at + length, start + length, rows[slot].tolist()))
        at += length
    assert filled(joined(batch_of(chunks), rows)) == expected


@given(CHUNKS)
def test_a_padded_batch_covers_every_token_and_no_query_sees_nothing(
    chunks: list[tuple[int, int]],
) -> None:
    host, rows = batch_of(chunks), table()
    padded = joined(whole(host, SLOTS), rows)
    real = filled(joined(host, rows))
    found = filled(padded)
    assert found[: len(real)] == real
    assert int(padded.starts[-1]) == whole(host, SLOTS).rows.shape[1]
    for start, end, seen, pages in found[len(real) :]:
        assert seen == end - start
        assert set(pages) == {0}


def test_a_sequence_shorter_than_a_tile_gets_columns_for_its_padding() -> None:
    rows = torch.zeros(1, 2, dtype=torch.int32)
    positions = torch.zeros(1, TILE, dtype=torch.int64)
    spans = spans_of(rows, positions, PAGE)
    assert spans.pages.shape == (1, TILE // PAGE)
    assert spans.seen.tolist() == [TILE]


@pytest.mark.parametrize(
    ("second", "row", "entries"),
    [(32, 0, 1), (32, 1, 2), (33, 0, 2), (0, 0, 2), (31, 0, 2)],
)
def test_only_what_goes_on_is_joined(second: int, row: int, entries: int) -> None:
    positions = torch.stack((torch.arange(32), torch.arange(second, second + 32)))
    spans = spans_of(table()[[0, row]], positions, PAGE)
    assert len(filled(spans)) == entries
