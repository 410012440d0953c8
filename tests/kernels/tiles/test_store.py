"""Tuned tiles outlive their process; a file that is not what it should be is said and ignored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from flexinfer.errors import WriteFailed
from flexinfer.kernels.fast.prefill import PrefillTile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import as_text, in_order, shipped, well_formed
from flexinfer.kernels.fast.tiles.store import (
    check_writable,
    main,
    path_of,
    read,
    shipped_with,
    write,
)
from flexinfer.kernels.fast.tiles.table import TileTable

DEVICE = "Some GPU (80 GB)/x"
H200 = "NVIDIA H200"
FIRST = [16, 64, 128, 4, 4, 4, 1]
TILES: dict[str, Any] = {
    "matmul": {"128x512": {"1": FIRST, "16": None}},
    "whole": {"128x512": {"1": None, "16": None}},
    "decode": {"4x128x8": {"1": [32, 4, 2, 3]}},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def altered(**fields: Any) -> str:
    """Return a good file's text with some fields replaced."""
    return json.dumps(json.loads(write(DEVICE, TILES, "2026-01-02").read_text()) | fields)


def test_what_is_written_is_read(cache: Path) -> None:
    assert read(DEVICE) == ({}, None, None)
    path = write(DEVICE, TILES, "2026-01-02")
    assert path == cache / "flexinfer" / "tiles" / "some-gpu-80-gb-x.json"
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert read(DEVICE) == (TILES, "2026-01-02", None)
    assert read("another GPU") == ({}, None, None)


def test_without_a_setting_it_is_the_homes_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert str(path_of("A100")) == "/home/somebody/.cache/flexinfer/tiles/a100.json"


def test_without_a_home_nothing_is_read_and_tuning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert read(DEVICE) == ({}, None, None)
    with pytest.raises(WriteFailed, match="no home folder"):
        check_writable(DEVICE)


def test_models_gather_in_one_file() -> None:
    write(DEVICE, TILES, "2026-01-02")
    write(DEVICE, {"matmul": {"96x512": {"1": None}, "128x512": {"1": None}}}, "2026-01-03")
    tiles, tuned_on, _ = read(DEVICE)
    assert tuned_on == "2026-01-03"
    assert tiles["matmul"] == {"96x512": {"1": None}, "128x512": {"1": None, "16": None}}
    assert list(tiles["matmul"]) == ["96x512", "128x512"]
    assert tiles["decode"] == TILES["decode"]


BROKEN = {
    "{": "it is not JSON",
    "[1]": "it is not a tile file of this version",
    '{"schema": 1}': "it is not a tile file of this version",
    '{"schema": 2, "device": "Else"}': "it is of 'Else'",
}
MALFORMED: list[Any] = [
    None,
    {"other": {}},
    {"matmul": []},
    {"matmul": {"128": {"1": None}}},
    {"matmul": {"128x-5": {"1": None}}},
    {"matmul": {"128x512": {"one": None}}},
    {"matmul": {"128x512": {"1": FIRST[:-1]}}},
    {"matmul": {"128x512": {"1": [*FIRST[:-1], "1"]}}},
    {"matmul": {"128x512": {"1": [*FIRST[:-1], True]}}},
    {"matmul": {"128x512": {"1": [16, 64, 128, 3, 4, 4, 1]}}},
    {"matmul": {"9" * 5000 + "x512": {"1": None}}},
    {"matmul": {"128x512": {"01": None}}},
    {"whole": {"128x512": {"1": FIRST}}},
    {"decode": {"4x128x8": {"1": None}}},
    {"decode": {"4x128x8": {"1": [24, 4, 2, 3]}}},
    {"decode": {"4x128x8": {"1": [32, 65, 2, 3]}}},
    {"prefill": {"128": {"0": [256, 64, 4, 3]}}},
]


@pytest.mark.parametrize(("text", "why"), BROKEN.items())
def test_a_broken_file_is_said_and_ignored(text: str, why: str) -> None:
    path = write(DEVICE, TILES, "2026-01-02")
    path.write_text(text)
    tiles, _, problem = read(DEVICE)
    assert tiles == {}
    assert problem == f"{path} is ignored: {why}; `flexinfer bench --tune` makes it anew"
    assert TileTable.of_device(DEVICE).notices[1] == f"tuned tiles: {problem}"
    write(DEVICE, TILES, "2026-01-03")
    assert read(DEVICE) == (TILES, "2026-01-03", None)


@pytest.mark.parametrize("tiles", MALFORMED)
def test_tiles_that_a_kernel_would_choke_on_are_ignored(tiles: Any) -> None:
    path_of(DEVICE).parent.mkdir(parents=True)
    path_of(DEVICE).write_text(altered(tiles=tiles))
    assert read(DEVICE).tiles == {}
    assert "its tiles are malformed" in str(read(DEVICE).problem)


@pytest.mark.parametrize("measured", [{}, {"9": [64, 64, 4, 3]}])
def test_prefill_has_one_tile_whatever_it_is_filed_under(measured: dict[str, list[int]]) -> None:
    write(DEVICE, {"prefill": {"128": measured}}, "2026-01-02")
    found = TileTable.of_device(DEVICE).prefill(128)
    assert found == (PrefillTile(64, 64, 4, 3) if measured else TileTable({}).prefill(128))


def test_another_triton_wants_its_own(cache: Path) -> None:
    path = path_of(DEVICE)
    path.parent.mkdir(parents=True)
    path.write_text(altered(triton="1.0"))
    assert "it is of Triton '1.0'" in str(read(DEVICE).problem)


def test_a_file_that_cannot_be_read_is_said() -> None:
    path_of(DEVICE).mkdir(parents=True)
    assert "Is a directory" in str(read(DEVICE).problem)
    path_of("b").write_bytes(b"\xff\xfe")
    assert "not JSON" in str(read("b").problem)


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    (cache / "flexinfer").write_text("a file")
    for attempt in (lambda: check_writable(DEVICE), lambda: write(DEVICE, TILES, "2026-01-02")):
        with pytest.raises(WriteFailed, match="flexinfer"):
            attempt()


def test_a_writable_cache_passes(cache: Path) -> None:
    check_writable(DEVICE)
    assert list((cache / "flexinfer" / "tiles").iterdir()) == []


def test_the_users_entries_lie_over_the_shipped() -> None:
    name, there = next(iter(shipped()[H200]["matmul"].items()))
    outputs, inputs = map(int, name.split("x"))
    mine = [16, 16, 256, 1, 4, 2, 1]
    assert there["1"] != mine
    write(H200, {"matmul": {name: {"1": mine}}}, "2026-01-02")
    table = TileTable.of_device(H200)
    assert table.matmul(1, outputs, inputs, split=True) == Tile(*mine)
    assert table.matmul(2, outputs, inputs, split=True) == Tile(*there["16"])
    assert table.prefill(128) == TileTable(shipped()[H200]).prefill(128)


def test_where_tiles_came_from_is_said() -> None:
    unknown = f"tuned tiles: none for {DEVICE}: products go to cuBLAS; `flexinfer bench --tune`"
    assert TileTable.of_device(DEVICE).notices == (f"{unknown} measures it once",)
    assert TileTable.of_device(H200).notices == (f"tuned tiles: for {H200}, shipped",)
    for name, rest in ((DEVICE, ""), (H200, ", the rest shipped")):
        write(name, TILES, "2026-01-02")
        told = f"tuned tiles: for {name}, tuned here on 2026-01-02{rest}"
        assert TileTable.of_device(name).notices == (told,)


def test_the_shipped_table_is_made_of_such_files() -> None:
    same = as_text({device: in_order(tiles) for device, tiles in shipped().items()})
    assert shipped_with([]) == same
    assert all(map(well_formed, shipped().values()))
    made = json.loads(shipped_with([str(write(DEVICE, TILES, "2026-01-02"))]))
    assert made == shipped() | {DEVICE: TILES}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("{", "it is not JSON"),
        ("\x00", "it is not JSON"),
        ("[]", "it is not a tile file of this version"),
        ('{"schema": 1}', "it is not a tile file of this version"),
        ('{"schema": 2, "device": "x", "tiles": {"matmul": 1}}', "its tiles are malformed"),
        ('{"schema": 2, "tiles": {}}', "its tiles are malformed"),
    ],
)
def test_the_program_says_what_is_wrong_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, why: str
) -> None:
    path = tmp_path / "tiles.json"
    if text is not None:
        path.write_text(text)
    assert main([str(path)]) == 2
    assert capsys.readouterr() == ("", f"error: {path}: {why}\n")
    assert main([]) == 0
    assert capsys.readouterr().out == shipped_with([])


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "flexinfer.kernels.fast.tiles.store"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "error: cannot write standard output: No space left on device\n"
    assert (found.returncode, found.stderr) == (1, said)
