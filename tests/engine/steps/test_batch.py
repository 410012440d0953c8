"""Packing chunks: every token at its position, in one tile of its own sequence, at its place."""

from __future__ import annotations

import random

import pytest
import torch

from flexinfer.core.sequence import Group, Sequence
from flexinfer.core.step import Chunk
from flexinfer.engine.steps.batch import PrefillBatch, prefill_batch

PAD = 99
CPU = torch.device("cpu")


def chunk(slot: int, start: int, end: int, sampled: bool) -> Chunk:
    """Make a chunk of a sequence whose token at position p is 1000 * slot + p."""
    prompt = tuple(1000 * slot + p for p in range(end))
    sequence = Sequence(Group(prompt), 5)
    sequence.slot = slot
    return Chunk(sequence, start, end, sampled)


def check(batch: PrefillBatch, chunks: list[Chunk], tile: int) -> None:
    """Fail unless the batch says exactly what the chunks do."""
    expected = [
        (1000 * (c.sequence.slot or 0) + p, p, c.sequence.slot)
        for c in chunks
        for p in range(c.start, c.end)
    ]
    found = zip(*(x.tolist() for x in batch[:3]), strict=True)
    assert list(found) == expected
    assert batch.tile_index.shape == batch.tile_positions.shape
    assert batch.tile_index.shape[1] == tile
    assert batch.tile_index.shape[0] == sum(-(-(c.end - c.start) // tile) for c in chunks)
    flat_index, flat_positions = batch.tile_index.flatten(), batch.tile_positions.flatten()
    assert flat_index[batch.place].tolist() == list(range(len(expected)))
    assert torch.equal(flat_positions[batch.place], batch.positions)
    padding = torch.ones_like(flat_index, dtype=torch.bool)
    padding[batch.place] = False
    assert (flat_positions[padding] == -1).all()
    assert torch.equal(
        batch.slots[batch.tile_index], batch.tile_slots[:, None].expand_as(batch.tile_index)
    )
    for at in batch.tile_positions.tolist():
        inside = [p for p in at if p >= 0]
        assert inside == list(range(at[0], at[0] + len(inside)))
        assert at[len(inside) :] == [-1] * (tile - len(inside))


@pytest.mark.parametrize("tile", [1, 4, 32])
@pytest.mark.parametrize(
    "spans",
    [[(0, 1)], [(0, 32)], [(0, 33)], [(5, 6), (0, 31)], [(0, 4), (64, 97), (3, 4), (8, 40)]],
)
def test_chunks(spans: list[tuple[int, int]], tile: int) -> None:
    chunks = [chunk(slot, *span, sampled=True) for slot, span in enumerate(spans, 3)]
    batch = prefill_batch(chunks, tile, len(chunks), PAD).on(CPU)
    check(batch, chunks, tile)
    assert batch.keep_slots.tolist() == [c.sequence.slot for c in chunks]
    last = [(c.sequence.slot, c.end - 1) for c in chunks]
    kept = zip(batch.slots[batch.keep].tolist(), batch.positions[batch.keep].tolist(), strict=True)
    assert list(kept) == last
    assert all(tensor.dtype == torch.int64 for tensor in batch)


def test_random_chunks() -> None:
    draw = random.Random(0)
    for _ in range(50):
        chunks = []
        for slot in range(draw.randint(1, 6)):
            start = draw.randint(0, 40)
            chunks.append(chunk(slot, start, start + draw.randint(1, 70), draw.random() < 0.6))
        tile = draw.choice([1, 3, 8, 32])
        sampled = [c for c in chunks if c.sampled]
        batch = prefill_batch(chunks, tile, len(sampled), PAD).on(CPU)
        check(batch, chunks, tile)
        assert batch.keep_slots.tolist() == [c.sequence.slot for c in sampled]
        assert batch.positions[batch.keep].tolist() == [c.end - 1 for c in sampled]


def test_kept_rows_are_padded_with_the_pad_slot() -> None:
    chunks = [chunk(0, 0, 5, True), chunk(1, 0, 3, False), chunk(2, 4, 9, True)]
    batch = prefill_batch(chunks, 8, 6, PAD).on(CPU)
    assert batch.keep.tolist() == [4, 12, 0, 0, 0, 0]
    assert batch.keep_slots.tolist() == [0, 2, PAD, PAD, PAD, PAD]


def test_nothing_is_kept_where_nothing_is_sampled() -> None:
    batch = prefill_batch([chunk(0, 0, 5, False)], 8, 6, PAD).on(CPU)
    assert batch.keep.shape == batch.keep_slots.shape == (0,)
