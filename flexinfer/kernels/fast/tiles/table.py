"""Which tile computes which product: a table measured on a device, shipped or tuned there.

Entries are keyed by (outputs, inputs) and the largest row count they were measured for; an entry of
None says that cuBLAS won. Rows beyond the last measured count, and unknown shapes, go to cuBLAS.
"""

from __future__ import annotations

from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.nf4.tile import Nf4Tile, untuned
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import Entries, merged, shipped
from flexinfer.kernels.fast.tiles.store import Stored, read


class TileTable:
    """Tiles of one device; `notices` say where they came from."""

    invariant = False
    """Whether the tile of a shape is the same for any number of rows, and there always is one."""

    def __init__(self, entries: Entries, notices: tuple[str, ...] = ()) -> None:
        """Take `{"matmul" | "gated" | "decode": {shape: {rows: tile}}}` as the JSON file has it."""
        self._entries, self.notices = entries, notices

    @classmethod
    def of_device(cls, name: str) -> TileTable:
        """Return a device's shipped tiles under those tuned here; none if it was not measured."""
        given, stored = shipped().get(name, {}), read(name)
        return cls(merged(given, stored.tiles), notices_of(name, bool(given), stored))

    @property
    def entries(self) -> Entries:
        """The tiles as the JSON file has them."""
        return self._entries

    def _find(self, kind: str, shape: str, rows: int) -> list[int] | None:
        """Return the entry of the smallest measured row count that holds `rows`."""
        measured = self._entries.get(kind, {}).get(shape, {})
        fits = [count for count in map(int, measured) if count >= rows]
        return measured[str(min(fits))] if fits else None

    def matmul(self, rows: int, outputs: int, inputs: int, *, split: bool) -> Tile | None:
        """Return the tile of [rows, inputs] x [outputs, inputs]^T, None for cuBLAS.

        `split`: the consumer adds partial sums itself.
        """
        found = self._find("matmul" if split else "whole", f"{outputs}x{inputs}", rows)
        return None if found is None else Tile(*found)

    def gated(self, rows: int, outputs: int, inputs: int) -> Tile | None:
        """Return the tile of the gated product with `outputs` results a row, None for cuBLAS."""
        found = self._find("gated", f"{outputs}x{inputs}", rows)
        return None if found is None else Tile(*found)

    def nf4(self, rows: int, outputs: int, inputs: int, *, split: bool) -> Nf4Tile | None:
        """Return the tile of a product with 4-bit weights, None for cuBLAS, dequantised before.

        Shapes that were not measured get a default tile up to nf4.tile.ROWS rows.
        """
        kind, shape = "nf4" if split else "nf4-whole", f"{outputs}x{inputs}"
        if self._entries.get(kind, {}).get(shape):
            found = self._find(kind, shape, rows)
            return None if found is None else Nf4Tile(*found)
        return untuned(rows, outputs, inputs, split=split)

    def prefill(self, head_dim: int) -> PrefillTile:
        """Return the tile of prefill attention; the default fits 99 KB of shared memory (sm_86)."""
        found = self._find("prefill", str(head_dim), 0)
        if found is not None:
            return PrefillTile(*found)
        if head_dim <= 128:
            return PrefillTile(128, 64, 8, 3)
        return PrefillTile(64 if head_dim <= 256 else 32, 32, 8, 2)

    def decode(self, rows: int, group: int, head_dim: int, kv_heads: int) -> DecodeTile:
        """Return the tile of decode attention; the default fits any device."""
        found = self._find("decode", f"{group}x{head_dim}x{min(kv_heads, 8)}", rows)
        if found is not None:
            return DecodeTile(*found)
        wide = head_dim > 256
        return DecodeTile(
            16 if wide else 32, 1 if rows * kv_heads >= 256 else 4, 4 if head_dim > 128 else 2, 3
        )


def notices_of(name: str, is_shipped: bool, stored: Stored) -> tuple[str, ...]:
    """Say where a device's tiles came from, and which file of the user's was ignored."""
    if stored.tiles:
        told = f"for {name}, tuned here on {stored.tuned_on}"
        told += ", the rest shipped" if is_shipped else ""
    elif is_shipped:
        told = f"for {name}, shipped"
    else:
        told = f"none for {name}: products go to cuBLAS; `flexinfer bench --tune` measures it once"
    problem = () if stored.problem is None else (f"tuned tiles: {stored.problem}",)
    return (f"tuned tiles: {told}", *problem)
