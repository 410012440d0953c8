"""Tiles that do not depend on the number of rows: a row's bits are the same whatever the others.

The order in which a product or an attention sums is fixed by its tile. So every call, of a decode
step and of a prefill, takes the tile that was tuned for ROWS rows, and nothing goes to cuBLAS,
which picks its kernel by the number of rows.
"""

from __future__ import annotations

from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import Entries
from flexinfer.kernels.fast.tiles.table import TileTable

ROWS = 64


class InvariantTable(TileTable):
    """See TileTable: the same answer for any number of rows."""

    invariant = True

    def __init__(self, entries: Entries, notices: tuple[str, ...], tma: bool) -> None:
        """Take the tiles of a device and whether it has a tensor memory accelerator."""
        super().__init__(entries, notices)
        self._tma = int(tma)

    def matmul(self, rows: int, outputs: int, inputs: int, *, split: bool) -> Tile | None:
        """See TileTable; where there is none, a tile all the same, which may not divide K."""
        found = super().matmul(ROWS, outputs, inputs, split=split)
        return found if found is not None else Tile(64, 64, 64, 1, 4, 4, self._tma)

    def gated(self, rows: int, outputs: int, inputs: int) -> Tile | None:
        """See TileTable; None: the product of `matmul`, then the activation."""
        return super().gated(ROWS, outputs, inputs)

    def decode(self, rows: int, group: int, head_dim: int, kv_heads: int) -> DecodeTile:
        """See TileTable."""
        return super().decode(ROWS, group, head_dim, kv_heads)
