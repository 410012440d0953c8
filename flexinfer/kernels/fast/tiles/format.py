"""How tiles are written down: `{kind: {shape: {rows: tile or null}}}`, and what is well-formed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.nf4.tile import APART, LEAST_SHARE, LEFT, Nf4Tile, ways, whole_shares
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile

KINDS: Mapping[str, Any] = {
    "matmul": Tile, "whole": Tile, "gated": Tile, "decode": DecodeTile, "prefill": PrefillTile,
    "nf4": Nf4Tile, "nf4-whole": Nf4Tile,
}  # fmt: skip
NUMBERS = {
    "matmul": 2, "whole": 2, "gated": 2, "decode": 3, "prefill": 1,
    "nf4": 2, "nf4-whole": 2,
}  # fmt: skip
"""Numbers in the name of a shape, such as `2560x4096`."""
QUERIES = 128
"""Queries of a prefill tile, as the engine cuts them: BM must divide it."""
LEAST_KEYS = 16
"""Keys of a turn, and rows and columns of any block: tensor cores take no fewer."""
MOST_SPLITS = 64
"""Shares of a row's keys in decode attention: more only add partial sums, and memory for them."""
Entries = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Tiles of one device."""


def shipped() -> dict[str, Any]:
    """Return the tiles that come with the package, by device."""
    text = files("flexinfer.kernels.fast.tiles").joinpath("tiles.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def well_formed(tiles: Any) -> bool:
    """Return whether these are entries that the kernels can take."""
    return isinstance(tiles, dict) and all(
        kind in KINDS
        and isinstance(shapes, dict)
        and all(_shape(kind, *one) for one in shapes.items())
        for kind, shapes in tiles.items()
    )


def _shape(kind: str, name: str, measured: Any) -> bool:
    """Return whether the entries of one shape are sound."""
    numbers = name.split("x")
    if len(numbers) != NUMBERS[kind] or not all(map(_number, numbers)):
        return False
    shape = tuple(map(int, numbers))
    return isinstance(measured, dict) and all(
        _number(rows) and _entry(kind, shape, tile) for rows, tile in measured.items()
    )


def _number(text: str) -> bool:
    """Return whether a name is a plain number, of no more digits than any shape has."""
    return text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text


def _entry(kind: str, shape: tuple[int, ...], tile: Any) -> bool:
    """Return whether one entry is a tile, or None where cuBLAS may win."""
    if tile is None:
        return KINDS[kind] in (Tile, Nf4Tile)
    fields = KINDS[kind]._fields
    plain = isinstance(tile, list) and all(type(value) is int for value in tile)
    return plain and len(tile) == len(fields) and fits(kind, shape, KINDS[kind](*tile))


def merged(under: Entries, over: Entries) -> dict[str, dict[str, dict[str, Any]]]:
    """Return both, entry by entry; those of `over` win."""
    return {
        kind: {
            shape: {**under.get(kind, {}).get(shape, {}), **over.get(kind, {}).get(shape, {})}
            for shape in {**under.get(kind, {}), **over.get(kind, {})}
        }
        for kind in KINDS
        if kind in under or kind in over
    }


def in_order(tiles: Entries) -> dict[str, dict[str, dict[str, Any]]]:
    """Return entries with shapes and rows in ascending order."""
    return {
        kind: {
            shape: dict(sorted(measured.items(), key=lambda item: int(item[0])))
            for shape, measured in sorted(
                tiles[kind].items(), key=lambda item: [int(n) for n in item[0].split("x")]
            )
        }
        for kind in KINDS
        if kind in tiles
    }


def as_text(document: Any) -> str:
    """Return JSON with every tile on one line."""
    spread = json.dumps(document, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda tile: json.dumps(json.loads(tile[0])), spread) + "\n"


def fits(kind: str, shape: tuple[int, ...], tile: Any) -> bool:
    """Return whether the kernel of `kind` takes `tile`, at (outputs, inputs) if it is a product.

    Whether it fits the device's shared memory is for a trial to find.
    """
    if not 1 <= tile.stages <= 8 or tile.warps not in (1, 2, 4, 8, 16):
        return False
    if isinstance(tile, PrefillTile):
        return _block(tile.BM) and _block(tile.BN) and QUERIES % tile.BM == 0
    if isinstance(tile, DecodeTile):
        return _block(tile.BN) and 1 <= tile.split <= MOST_SPLITS
    N, K = shape
    rows = isinstance(tile, Nf4Tile) and tile.BM == 8  # there they are the narrow side of a product
    sound = (rows or _block(tile.BM)) and _block(tile.BN) and _block(tile.BK) and tile.split >= 1
    divides = sound and N % tile.BN == 0
    if isinstance(tile, Nf4Tile):
        divides = divides and whole_shares(K, tile)
        known = tile.BK % 64 == 0 and tile.form in (APART, LEFT)
        known &= LEAST_SHARE * ways(tile) <= tile.BK
    else:
        divides = divides and K % (tile.split * tile.BK) == 0
        known = tile.tma in (0, 1)
    return divides and known and (kind in ("matmul", "nf4") or tile.split == 1)


def _block(size: int) -> bool:
    """Return whether a block may have this size."""
    return LEAST_KEYS <= size <= 512 and size & (size - 1) == 0
