"""From a step's chunks to packed tensors: token ids, positions, tiles, and the rows to keep.

Shape letters: T packed tokens, N tiles of Q queries, K kept rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexinfer.attention.tables import upload
from flexinfer.core.step import Chunk

Ints = npt.NDArray[np.int64]


class PrefillBatch(NamedTuple):
    """One prefill step on the device; all int64.

    `tokens`, `positions`, `slots`, `place` [T]: ids, positions, page-table rows, and where in the
    flattened tiles each token's query lies. `tile_index`, `tile_positions` [N, Q]: the packed token
    of each query and its position (-1: padding); `tile_slots` [N]. `keep`, `keep_slots` [K]: rows
    whose logits are sampled, padded with row 0 and the pad slot.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    place: Tensor
    tile_index: Tensor
    tile_positions: Tensor
    tile_slots: Tensor
    keep: Tensor
    keep_slots: Tensor


class HostBatch(NamedTuple):
    """The same on the host: `rows` [4, T], `tiles` [2, N, Q], `tile_slots` [N], `kept` [2, K]."""

    rows: Ints
    tiles: Ints
    tile_slots: Ints
    kept: Ints

    def on(self, device: torch.device) -> PrefillBatch:
        """Copy it to `device` without waiting."""
        return views(*(upload(part, device) for part in self))

    def padded(self, tokens: int, n_tiles: int, pad_slot: int) -> HostBatch:
        """Return a batch of `tokens` tokens in `n_tiles` tiles; the pad slot's all stand at 0."""
        count, (_, used, tile) = self.rows.shape[1], self.tiles.shape
        extra = np.arange(tokens - count)
        filled = -(-len(extra) // tile)
        assert used + filled <= n_tiles, (used, filled, n_tiles)
        zero = np.zeros_like(extra)
        rows = np.stack((zero, zero, zero + pad_slot, used * tile + extra))
        tiles = np.zeros((2, n_tiles - used, tile), dtype=np.int64)
        flat = tiles.reshape(2, -1)
        flat[1] = -1
        flat[0, : len(extra)], flat[1, : len(extra)] = count + extra, 0
        slots = np.full(n_tiles - used, pad_slot)
        return HostBatch(
            np.concatenate((self.rows, rows), 1), np.concatenate((self.tiles, tiles), 1),
            np.concatenate((self.tile_slots, slots)), self.kept,
        )  # fmt: skip


def views(rows: Tensor, tiles: Tensor, tile_slots: Tensor, kept: Tensor) -> PrefillBatch:
    """Return a batch over the parts of a HostBatch on a device."""
    return PrefillBatch(
        rows[0], rows[1], rows[2], rows[3], tiles[0], tiles[1], tile_slots, kept[0], kept[1]
    )


def prefill_batch(chunks: Sequence[Chunk], tile: int, kept_rows: int, pad_slot: int) -> HostBatch:
    """Pack chunks; `tile` is Q, and `keep` is padded to `kept_rows` where it is shorter."""
    lengths = np.array([chunk.end - chunk.start for chunk in chunks])
    slots = np.array([_slot(chunk) for chunk in chunks])
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    offset = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    first_position = np.array([chunk.start for chunk in chunks])
    tokens = np.concatenate([np.array(chunk.token_ids) for chunk in chunks])
    tiles = _tiles(lengths, starts, tile)
    tile_base = np.concatenate(([0], np.cumsum(-(-lengths // tile))))[:-1]
    rows = np.stack(
        (
            tokens,
            offset + np.repeat(first_position, lengths),
            np.repeat(slots, lengths),
            offset + np.repeat(tile_base, lengths) * tile,
        )
    )
    positions = np.where(tiles.valid, rows[1][tiles.source], -1)
    sampled = np.array([chunk.sampled for chunk in chunks])
    keep = (starts + lengths - 1)[sampled]
    missing = max(kept_rows - len(keep), 0) if len(keep) else 0
    keep_slots = np.pad(slots[sampled], (0, missing), constant_values=pad_slot)
    kept = np.stack((np.pad(keep, (0, missing)), keep_slots)).astype(np.int64)
    return HostBatch(rows, np.stack((tiles.source, positions)), slots[tiles.chunk], kept)


class _Tiles(NamedTuple):
    """Tiles on the host: `source` and `valid` [N, Q], `chunk` [N]."""

    source: Ints
    valid: npt.NDArray[np.bool_]
    chunk: Ints


def _tiles(lengths: Ints, starts: Ints, tile: int) -> _Tiles:
    """Cut each chunk into tiles of `tile` tokens; padding repeats the chunk's last token."""
    counts = -(-lengths // tile)
    chunk = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = within[:, None] * tile + np.arange(tile)
    valid = offset < lengths[chunk][:, None]
    source = starts[chunk][:, None] + np.minimum(offset, lengths[chunk][:, None] - 1)
    return _Tiles(source, valid, chunk)


def _slot(chunk: Chunk) -> int:
    """Return the slot of a running sequence."""
    assert chunk.sequence.slot is not None, "a chunk of a sequence without a slot"
    return chunk.sequence.slot
