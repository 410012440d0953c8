"""Every tile that would be tried is one that its kernel takes, and the known winners are tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

from flexinfer.attention.choose import TRITON_HEAD_DIMS
from flexinfer.engine.setup import TILE
from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.nf4.tile import APART, LEFT, Nf4Tile
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import QUERIES, fits, shipped
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.fast.tuning.candidates import Family
from flexinfer.kernels.fast.tuning.tune import DECODE_ROWS, NF4_ROWS, PRODUCT_ROWS

SHAPES = [(6144, 2560), (256, 1536), (1536, 256), (128_256, 3072), (2560, 9728), (49_152, 576)]
SMS = 132


def product_families(tma: int) -> Iterator[tuple[str, tuple[int, int], int, Family]]:
    for shape in SHAPES:
        for rows in PRODUCT_ROWS:
            families = candidates.products(*shape, rows, SMS, tma)
            yield from (("matmul", shape, rows, family) for family in families)
            yield from (("whole", shape, rows, one) for one in candidates.whole(families))
            gated = candidates.gated(*shape, rows, tma)
            yield from (("gated", shape, rows, family) for family in gated)


@pytest.mark.parametrize("tma", [0, 1])
def test_products_tried_are_those_that_the_kernels_take(tma: int) -> None:
    kinds = set()
    for kind, (outputs, inputs), rows, family in product_families(tma):
        where = (kind, outputs, inputs, rows, family)
        kinds.add(kind)
        for tile in family.tiles:
            assert inputs % (tile.split * tile.BK) == 0, where
            assert outputs % tile.BN == 0, where
            assert tile.BM >= 16, where
            assert tile.tma == tma, where
            assert kind == "matmul" or tile.split == 1, where
            assert tile.split == 1 or inputs // tile.split >= candidates.LEAST_INPUTS, where
            assert fits(kind, (outputs, inputs), tile), where
    assert kinds == {"matmul", "whole", "gated"}


def test_a_family_is_one_geometry_whose_splits_ascend() -> None:
    for _, _, _, (tiles, start) in product_families(1):
        splits = [tile.split for tile in tiles]
        assert len({tile._replace(split=1) for tile in tiles}) == 1
        assert splits == sorted(set(splits))
        assert 0 <= start < len(tiles)


def test_the_search_starts_where_every_multiprocessor_has_a_block() -> None:
    for tiles, start in candidates.products(2560, 9728, 64, SMS, 1):
        blocks = [2560 // tile.BN * tile.split for tile in tiles]
        assert all(count < SMS for count in blocks[:start])
        assert blocks[start] >= SMS or start == len(tiles) - 1
        assert max(blocks) <= candidates.MOST_WAVES * SMS or len(tiles) == 1


@pytest.mark.parametrize("rows", NF4_ROWS)
def test_products_with_4_bit_weights_tried_are_those_that_the_kernels_take(rows: int) -> None:
    for outputs, inputs in ((6144, 2560), (19_456, 2560), (2560, 9728), (256, 1536)):
        families = candidates.nf4(outputs, inputs, rows, SMS)
        assert len(families) > 2
        tiles = [tile for family in families for tile in family.tiles]
        assert all(fits("nf4", (outputs, inputs), tile) for tile in tiles)
        assert all((t.split - 1) * -(-inputs // t.BK // t.split) * t.BK < inputs for t in tiles)
        wide = outputs > candidates.WIDEST_SPLIT and rows > 32
        assert ({tile.split for tile in tiles} == {1}) == wide
        assert {tile.form for tile in tiles} == ({APART, LEFT} if rows > 16 else {APART})
        few = {32, 64} if rows == 64 else {min(rows, 64)}
        assert {tile.BM for tile in tiles} == few
        assert all(tile.warps >= 4 for tile in tiles if tile.form != APART)


def test_logits_are_not_split() -> None:
    for family in candidates.products(151_936, 2560, 64, SMS, 1):
        assert [tile.split for tile in family.tiles] == [1]


def test_shapes_that_no_tile_divides_are_left_to_cublas() -> None:
    assert candidates.products(50_257, 768, 16, SMS, 1) == []
    assert candidates.products(4096, 1000, 16, SMS, 1) == []
    assert candidates.gated(1000, 4096, 16, 1) == []


@pytest.mark.parametrize("head_dim", TRITON_HEAD_DIMS)
def test_attention_tried_is_what_the_kernels_take(head_dim: int) -> None:
    for rows in DECODE_ROWS:
        families = candidates.decode(rows, head_dim, 8, SMS)
        assert len(families) > 2
        for tile in (tile for family in families for tile in family.tiles):
            assert fits("decode", (), tile)
            assert tile.BN in (16, 32)
    assert len(candidates.prefill(head_dim)) > 2
    for (tile,), _ in candidates.prefill(head_dim):
        assert fits("prefill", (), tile)
        assert TILE["cuda"] % tile.BM == 0
    assert TILE["cuda"] == QUERIES


def test_decode_of_many_rows_is_not_split_and_of_one_much() -> None:
    def most(rows: int) -> int:
        return max(family.tiles[-1].split for family in candidates.decode(rows, 128, 8, SMS))

    assert (most(1), most(256)) == (16, 1)


def test_what_won_before_would_be_tried_again() -> None:
    entries = shipped()["NVIDIA H200"]
    tried, missed = 0, []
    for kind in ("matmul", "gated"):
        for shape, measured in entries[kind].items():
            outputs, inputs = map(int, shape.split("x"))
            for rows, tile in measured.items():
                if tile is None:
                    continue
                families = (
                    candidates.products(outputs, inputs, int(rows), SMS, 1)
                    if kind == "matmul"
                    else candidates.gated(outputs, inputs, int(rows), 1)
                )
                tried += 1
                if Tile(*tile) not in {one for family in families for one in family.tiles}:
                    missed.append((kind, shape, rows, tile))
    assert tried > 60
    assert missed == []


@pytest.mark.parametrize(
    ("kind", "tile"),
    [
        ("nf4", Nf4Tile(16, 32, 64, 5, 2, 3)),
        ("matmul", Tile(16, 48, 64, 1, 4, 3, 1)),
        ("matmul", Tile(16, 64, 64, 3, 4, 3, 1)),
        ("matmul", Tile(16, 64, 64, 0, 4, 3, 1)),
        ("matmul", Tile(8, 64, 64, 1, 4, 3, 1)),
        ("matmul", Tile(16, 64, 64, 1, 3, 3, 1)),
        ("matmul", Tile(16, 64, 64, 1, 4, 0, 1)),
        ("matmul", Tile(16, 64, 64, 1, 4, 3, 2)),
        ("whole", Tile(16, 64, 64, 2, 4, 3, 1)),
        ("gated", Tile(16, 64, 64, 2, 4, 3, 1)),
        ("nf4", Nf4Tile(16, 64, 32, 1, 1, 3)),
        ("nf4", Nf4Tile(16, 64, 64, 1, 4, 3)),
        ("nf4", Nf4Tile(16, 64, 64, 1, 2, 3, 2)),
        ("nf4-whole", Nf4Tile(16, 64, 64, 2, 2, 3)),
        ("decode", DecodeTile(24, 1, 4, 3)),
        ("decode", DecodeTile(32, 0, 4, 3)),
        ("prefill", PrefillTile(256, 64, 4, 3)),
        ("prefill", PrefillTile(64, 8, 4, 3)),
    ],
)  # fmt: skip
def test_what_a_kernel_does_not_take(kind: str, tile: Any) -> None:
    assert not fits(kind, (256, 512), tile)


def test_shares_of_4_bit_weights_may_differ_but_none_is_empty() -> None:
    """Eight turns: 3, 3 and 2; of five shares of two, one would be empty."""
    taken = [
        split for split in range(1, 10) if fits("nf4", (256, 512), Nf4Tile(16, 32, 64, split, 2, 3))
    ]
    assert taken == [1, 2, 3, 4, 8]
