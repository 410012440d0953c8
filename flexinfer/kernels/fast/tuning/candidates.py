"""Which tiles are worth a trial: families of tiles that differ in how far they split, by kind.

The geometries are those that won, or came close, on devices measured so far. A split is on the
ladder while it divides the inputs (those of products with 4-bit weights: leaves every share a
turn) and the blocks do not outnumber the device by far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.nf4.tile import APART, LEFT, Nf4Tile
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import LEAST_KEYS, fits

SPLITS = (1, 2, 3, 4, 5, 6, 8)
DECODE_SPLITS = (1, 2, 4, 8, 16)
LEAST_INPUTS = 256
"""Inputs of a share of a split product at least, on average: fewer do not fill its pipeline."""
MOST_WAVES = 5.3
"""Blocks, in multiples of the multiprocessors, beyond which a split only adds partial sums."""
NF4_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 16, 19)
NF4_WAVES = 10.0
"""The same of products with 4-bit weights, whose blocks are smaller."""
NF4_FILL = 2
"""Blocks of theirs that every multiprocessor has at the split that is tried first."""
WIDEST_SPLIT = 16384
"""Outputs up to which a product with 4-bit weights is split at more than 32 rows: wider ones fill
any device, and have long partial sums."""

PRODUCT = {
    16: ((16, 256, 4, 4), (32, 256, 4, 3), (64, 128, 4, 4), (64, 128, 8, 4), (128, 64, 4, 4),
         (128, 128, 4, 3)),
    32: ((16, 256, 4, 4), (32, 256, 4, 3), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3)),
    64: ((16, 256, 4, 4), (32, 128, 4, 5), (64, 64, 4, 6), (64, 128, 4, 4), (128, 64, 4, 4),
         (128, 128, 4, 3)),
    128: ((64, 64, 4, 4), (128, 64, 8, 3), (128, 64, 8, 4), (256, 64, 8, 3)),
}  # fmt: skip
"""BN, BK, warps and stages of products, by BM."""
GATED = {
    16: ((32, 128, 4, 3), (32, 128, 4, 4), (64, 128, 4, 3), (64, 64, 4, 4)),
    32: ((32, 128, 4, 3), (32, 128, 4, 4), (64, 128, 4, 3), (64, 64, 4, 4)),
    64: ((32, 128, 4, 3), (32, 128, 4, 4), (64, 64, 4, 4), (64, 64, 8, 4), (64, 128, 8, 3)),
    128: ((64, 64, 8, 3), (64, 64, 8, 4), (128, 64, 8, 3)),
}
DECODE = {
    128: ((16, 2, 3), (32, 2, 3), (32, 2, 4), (32, 4, 3)),
    256: ((16, 2, 3), (16, 4, 3), (32, 2, 2), (32, 4, 2), (32, 4, 3)),
    512: ((16, 4, 2), (16, 4, 3), (32, 4, 2), (32, 8, 2)),
}
"""BN, warps and stages of decode attention, by the widest head they are for."""
PREFILL = {
    128: ((64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3),
          (128, 128, 8, 2)),
    256: ((64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2)),
    512: ((32, 32, 8, 2), (64, 16, 8, 2), (64, 32, 8, 2)),
}  # fmt: skip


NF4: Mapping[int, Mapping[int, Any]] = {
    APART: {
        8: ((64, 128, 4, 3), (64, 128, 2, 3), (32, 256, 4, 3), (16, 256, 4, 4)),
        16: ((64, 128, 4, 3), (32, 256, 4, 3), (32, 256, 4, 2), (16, 256, 4, 4)),
        32: ((64, 128, 4, 3), (64, 128, 2, 3), (32, 128, 4, 3)),
        64: ((32, 128, 4, 3),),
    },
    LEFT: {
        32: ((64, 128, 4, 2), (64, 128, 4, 3)),
        64: ((64, 128, 4, 2), (64, 128, 4, 3), (64, 64, 4, 4), (128, 64, 8, 3)),
    },
}
"""The same of products with 4-bit weights, by form (see nf4.turns) and BM."""


class Family(NamedTuple):
    """Tiles of one geometry, least split first, and the index of the one to try first."""

    tiles: tuple[Any, ...]
    start: int


def _block_rows(rows: int, most: int) -> tuple[int, ...]:
    """Return the BM to try for `rows` rows; two where a block may take half of them."""
    least = min(max(LEAST_KEYS, 1 << (rows - 1).bit_length()), most)
    return (least,) if least <= 64 else (64, least)


def _ladder(make: Callable[[int], Any], splits: list[int], blocks: int, processors: int) -> Family:
    """Return a family that starts at the first split that gives every multiprocessor a block."""
    enough = (i for i, split in enumerate(splits) if blocks * split >= processors)
    return Family(tuple(make(split) for split in splits), next(enough, len(splits) - 1))


def products(N: int, K: int, rows: int, processors: int, tma: int) -> list[Family]:
    """Return families for [rows, K] x [N, K]^T whose consumer adds partial sums."""
    families = []
    for BM in _block_rows(rows, 128):
        for BN, BK, warps, stages in PRODUCT[BM]:
            blocks = -(-N // BN) * -(-rows // BM)
            most = max(1.0, MOST_WAVES * processors / blocks)
            splits = [
                split
                for split in SPLITS
                if split <= most and (split == 1 or K // split >= LEAST_INPUTS)
                if fits("matmul", (N, K), Tile(BM, BN, BK, split, warps, stages, tma))
            ]
            if splits:
                make = _tile(BM, BN, BK, warps, stages, tma)
                families.append(_ladder(make, splits, blocks, processors))
    return families


def _tile(BM: int, BN: int, BK: int, warps: int, stages: int, tma: int) -> Callable[[int], Tile]:
    """Return a geometry as a function of its split."""
    return lambda split: Tile(BM, BN, BK, split, warps, stages, tma)


def whole(families: list[Family]) -> list[Family]:
    """Return the tiles of `families` that leave no partial sums, each on its own."""
    return [Family((tile,), 0) for family in families for tile in family.tiles if tile.split == 1]


def gated(N: int, K: int, rows: int, tma: int) -> list[Family]:
    """Return families of one tile each for the gated product with N results a row."""
    tiles = (
        Tile(BM, BN, BK, 1, warps, stages, tma)
        for BM in _block_rows(rows, 128)
        for BN, BK, warps, stages in GATED[BM]
    )
    return [Family((tile,), 0) for tile in tiles if fits("gated", (N, K), tile)]


def nf4(N: int, K: int, rows: int, processors: int) -> list[Family]:
    """Return families for products with 4-bit weights; of 33 to 64 rows a block takes all or 32."""
    families = []
    for tile in _nf4_tiles(rows):
        blocks = -(-N // tile.BN) * -(-rows // tile.BM)
        most = max(1.0, NF4_WAVES * processors / blocks) if N <= WIDEST_SPLIT or rows <= 32 else 1
        splits = [
            split
            for split in NF4_SPLITS
            if split <= most and (split == 1 or K // split >= LEAST_INPUTS)
            if fits("nf4", (N, K), tile._replace(split=split))
        ]
        if splits:
            make = partial(_at_split, tile)
            families.append(_ladder(make, splits, blocks, NF4_FILL * processors))
    return families


def _at_split(tile: Nf4Tile, split: int) -> Nf4Tile:
    """Return a geometry at a split."""
    return tile._replace(split=split)


def _nf4_tiles(rows: int) -> Iterator[Nf4Tile]:
    """Yield the tiles of every form for `rows` rows, not split."""
    for form, by_rows in NF4.items():
        for BM in _nf4_rows(rows):
            for BN, BK, warps, stages in by_rows.get(BM, ()):
                yield Nf4Tile(BM, BN, BK, 1, warps, stages, form)


def _nf4_rows(rows: int) -> tuple[int, ...]:
    """Return the BM to try: rows beyond 64 dequantise anew, as those beyond a smaller BM do."""
    least = next((BM for BM in (8, 16, 32) if rows <= BM), 64)
    return (32, 64) if 32 < rows <= 64 else (least,)


def decode(rows: int, head_dim: int, kv_heads: int, processors: int) -> list[Family]:
    """Return families for decode attention."""
    blocks = rows * kv_heads
    splits = [s for s in DECODE_SPLITS if s == 1 or blocks * s <= MOST_WAVES * processors]
    families = []
    for BN, warps, stages in _of_width(DECODE, head_dim):
        make = _decode_tile(BN, warps, stages)
        families.append(_ladder(make, splits, blocks, processors))
    return families


def _decode_tile(BN: int, warps: int, stages: int) -> Callable[[int], DecodeTile]:
    """Return a geometry as a function of its split."""
    return lambda split: DecodeTile(BN, split, warps, stages)


def prefill(head_dim: int) -> list[Family]:
    """Return families of one tile each for prefill attention."""
    return [Family((PrefillTile(*one),), 0) for one in _of_width(PREFILL, head_dim)]


def _of_width(table: dict[int, Any], head_dim: int) -> Any:
    """Return what `table` has for heads of this width."""
    return table[min((width for width in table if width >= head_dim), default=max(table))]
