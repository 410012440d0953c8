"""Engines on the fast path without CUDA: interpreted on a CPU, or on `meta` to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from flexinfer.attention.choose import Choice
from flexinfer.engine import setup
from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.table import TileTable


class SmallTiles(TileTable):
    """Tiles for any product of a tiny model, all of them small: several blocks, turns and shares.

    The interpreter takes TMA for what it is: a load of a tile.
    """

    def __init__(self, split: int = 2, tma: int = 0) -> None:
        """Take how many ways projections, and the sequences of decode attention, are split."""
        super().__init__({})
        self._split, self._tma = split, tma

    def matmul(self, rows: int, outputs: int, inputs: int, *, split: bool) -> Tile | None:
        """Return a tile where 32 inputs a turn divide the shares."""
        shares = self._split if split else 1
        fits = inputs % (32 * shares) == 0
        return Tile(16, 64, 32, shares, 4, 2, self._tma) if fits else None

    def gated(self, rows: int, outputs: int, inputs: int) -> Tile | None:
        """Return a tile where it divides."""
        return Tile(16, 64, 32, 1, 4, 2, self._tma) if outputs % 64 == inputs % 32 == 0 else None

    def decode(self, rows: int, group: int, head_dim: int, kv_heads: int) -> DecodeTile:
        """Return a tile of 16 keys."""
        return DecodeTile(16, self._split, 2, 2)

    def prefill(self, head_dim: int) -> PrefillTile:
        """Return a tile of 16 queries and keys."""
        return PrefillTile(16, 16, 4, 2)


@contextmanager
def fast_path(tiles: TileTable) -> Iterator[None]:
    """Within it every engine that is set up takes the own kernels, with these tiles."""
    with ExitStack() as stack:
        for patched in (
            patch.object(setup, "_choice", lambda *given: Choice("triton", "a test")),
            patch.object(torch.cuda, "get_device_name", lambda device=None: "a test's device"),
            patch.object(TileTable, "of_device", lambda name: tiles),
            patch.dict(setup.PAGE_SIZE, meta=setup.PAGE_SIZE["cuda"]),
            patch.dict(setup.TILE, meta=setup.TILE["cuda"]),
        ):
            stack.enter_context(patched)
        yield
