"""The shipped tiles are well-formed and looked up as they were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("triton")

from flexinfer.attention.choose import TRITON_HEAD_DIMS
from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.nf4.tile import Nf4Tile
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.table import TileTable

SHIPPED: dict[str, Any] = json.loads(
    files("flexinfer.kernels.fast.tiles").joinpath("tiles.json").read_text()
)
PRODUCTS = ("matmul", "whole", "gated")
NF4 = ("nf4", "nf4-whole")
FIELDS = (
    dict.fromkeys(PRODUCTS, Tile)
    | dict.fromkeys(NF4, Nf4Tile)
    | {"decode": DecodeTile, "prefill": PrefillTile}
)
FIRST, SECOND = [16, 64, 128, 4, 4, 4, 1], [64, 64, 64, 2, 4, 6, 0]
TABLE = TileTable(
    {
        "matmul": {"128x512": {"16": FIRST, "2": SECOND, "64": None, "128": SECOND}},
        "whole": {"128x512": {"16": [16, 64, 128, 1, 4, 4, 1]}},
        "gated": {"96x512": {"8": SECOND}},
        "decode": {"4x128x8": {"32": [32, 2, 2, 4], "64": [16, 1, 4, 3]}},
        "prefill": {"128": {"0": [64, 64, 4, 3]}},
    }
)


def entries(*kinds: str) -> Iterator[tuple[str, str, int, list[int] | None]]:
    """Yield (kind, shape, rows, tile) of every entry of every device."""
    for device in SHIPPED.values():
        for kind in kinds:
            for shape, measured in device.get(kind, {}).items():
                for rows, tile in measured.items():
                    yield kind, shape, int(rows), tile


@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (1, SECOND), (2, SECOND), (3, FIRST), (16, FIRST), (17, None), (64, None), (65, SECOND),
        (128, SECOND), (129, None),
    ],
)  # fmt: skip
def test_the_smallest_measured_count_that_holds_the_rows(rows: int, tile: list[int] | None) -> None:
    found = TABLE.matmul(rows, 128, 512, split=True)
    assert found == (None if tile is None else Tile(*tile))


def test_products_that_were_not_measured_go_to_cublas() -> None:
    assert TABLE.matmul(1, 512, 128, split=True) is None
    assert TABLE.gated(9, 96, 512) is None
    assert TABLE.gated(1, 96, 1024) is None
    assert TileTable({}).matmul(1, 128, 512, split=False) is None
    assert TileTable({}).gated(1, 96, 512) is None


def test_partial_sums_only_for_those_who_add_them() -> None:
    assert TABLE.matmul(9, 128, 512, split=True) == Tile(*FIRST)
    assert TABLE.matmul(9, 128, 512, split=False) == Tile(16, 64, 128, 1, 4, 4, 1)
    assert TABLE.gated(8, 96, 512) == Tile(*SECOND)


def test_attention_always_has_a_tile() -> None:
    assert TABLE.decode(33, 4, 128, 8) == DecodeTile(16, 1, 4, 3)
    assert TABLE.decode(33, 4, 128, 32) == DecodeTile(16, 1, 4, 3)
    assert TABLE.prefill(128) == PrefillTile(64, 64, 4, 3)
    for table in (TABLE, TileTable({})):
        for head_dim in TRITON_HEAD_DIMS:
            for rows, kv_heads in ((1, 1), (65, 8), (512, 8)):
                assert table.decode(rows, 7, head_dim, kv_heads).BN in (16, 32)
            assert table.prefill(head_dim).BM <= 128


def test_few_blocks_are_split_and_many_are_not() -> None:
    assert TileTable({}).decode(1, 4, 128, 8).split > 1
    assert TileTable({}).decode(256, 4, 128, 8).split == 1


def test_a_device_that_was_not_measured() -> None:
    [notice] = TileTable.of_device("a device nobody has").notices
    assert notice.startswith("tuned tiles: none for a device nobody has")
    for name in SHIPPED:
        assert TileTable.of_device(name).notices == (f"tuned tiles: for {name}, shipped",)


def test_entries_are_tiles_of_powers_of_two() -> None:
    for kind, shape, rows, tile in entries(*FIELDS):
        where = (kind, shape, rows, tile)
        if tile is None:
            assert kind in (*PRODUCTS, *NF4), where
            continue
        made = FIELDS[kind](*tile)
        sizes = [made._asdict().get(name, 1) for name in ("BM", "BN", "BK", "warps")]
        assert all(size > 0 and size & (size - 1) == 0 for size in sizes), where
        assert made.stages >= 1, where


def test_product_tiles_divide_their_shapes() -> None:
    for kind, shape, rows, tile in entries(*PRODUCTS):
        if tile is not None:
            outputs, inputs = map(int, shape.split("x"))
            made = Tile(*tile)
            assert inputs % (made.split * made.BK) == 0, (kind, shape, rows, tile)
            assert outputs % made.BN == 0, (kind, shape, rows, tile)
            assert made.tma in (0, 1)
            assert kind == "matmul" or made.split == 1, (kind, shape, rows, tile)


def test_products_are_measured_with_and_without_partial_sums() -> None:
    for device in SHIPPED.values():
        assert device["matmul"].keys() == device["whole"].keys()
        for shape, measured in device["matmul"].items():
            assert measured.keys() == device["whole"][shape].keys()


def test_attention_tiles() -> None:
    for kind, shape, _, tile in entries("decode", "prefill"):
        assert tile is not None
        if kind == "decode":
            _, head_dim, kv_heads = map(int, shape.split("x"))
            assert kv_heads <= 8
            assert DecodeTile(*tile).split >= 1
            assert DecodeTile(*tile).BN >= 16
        else:
            head_dim = int(shape)
            assert 128 % PrefillTile(*tile).BM == 0
        assert head_dim in TRITON_HEAD_DIMS
