"""The output file: grows safely, is nobody else's meanwhile, and is not touched in vain."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.generate.file import OutputFile
from flexinfer.tasks.generate.output import as_line
from flexinfer.tasks.generate.records import Record
from flexinfer.tasks.generate.resume import read_finished


def record(name: str | int) -> Record:
    return {"id": name, "prompt_token_ids": [1], "outputs": [{"text": "t"}]}


def line(name: str | int) -> str:
    return as_line(record(name), "jsonl")


def records(path: Path) -> list[Record]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def test_each_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out") as file:
        for count in (1, 2):
            file.write(line(count))
            assert len(records(tmp_path / "out")) == count


def test_old_content_stays_until_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("precious\n")
    with OutputFile(path):
        pass
    assert path.read_text() == "precious\n"
    with OutputFile(path) as file:
        file.write(line(0))
        file.close([0])
    assert records(path) == [record(0)]


def test_a_file_is_made_with_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with OutputFile(path) as file:
        assert not path.exists()
        file.write("x\n")
        assert path.read_text() == "x\n"


def test_a_run_without_records_leaves_an_empty_file(tmp_path: Path) -> None:
    for path in (tmp_path / "old", tmp_path / "new"):
        (tmp_path / "old").write_text("old\n")
        with OutputFile(path) as file:
            file.close([])
        assert path.read_text() == ""


@pytest.mark.parametrize("path", ["/dev/null/x", "/", "/missing/folder/x", "/proc/x"])
def test_what_cannot_be_written_is_known_at_once(path: str) -> None:
    with pytest.raises(WriteFailed, match=f"cannot write {path}: "):
        OutputFile(Path(path))


@pytest.mark.parametrize("kept", [[], [record(0)]])
def test_a_folder_that_takes_no_file_is_known_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[Record]
) -> None:
    path = tmp_path / "out"
    if kept:
        path.write_text(line(0))
    real = os.open

    def refuse(name: str, flags: int, *rest: Any) -> int:  # root may write anywhere
        if flags & (os.O_CREAT | os.O_TMPFILE):
            raise PermissionError(13, "Permission denied")
        return real(name, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(WriteFailed, match="Permission denied"), OutputFile(path) as file:
        file.keep(kept)


def test_a_full_disk_is_an_error_of_the_write() -> None:
    with (
        OutputFile(Path("/dev/full")) as file,
        pytest.raises(WriteFailed, match="cannot write /dev/full: "),
    ):
        file.write(line(0))


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(line(0))
    with OutputFile(path) as first:
        first.keep([record(0)])
        for name in (1, 2):
            with pytest.raises(UsageError, match="another process is writing to it"):
                OutputFile(path)
            first.write(line(name))  # from the first on it is another file of the same name
        first.close([2, 0, 1])
    OutputFile(path).close([])


def test_of_two_that_find_no_file_the_second_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with OutputFile(path) as first, OutputFile(path) as second:
        first.write(line(0))
        with pytest.raises(UsageError, match="another process"):
            second.write(line(1))
    with OutputFile(path) as late:
        path.unlink()
    with OutputFile(path) as late:
        path.write_text(line(2))
        with pytest.raises(UsageError, match="another process"):
            late.write(line(1))
    assert records(path) == [record(2)]


def test_a_file_that_was_replaced_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def replace(stream: object, operation: int) -> None:
        (tmp_path / "new").write_text("new")
        os.replace(tmp_path / "new", path)

    monkeypatch.setattr(fcntl, "flock", replace)
    with pytest.raises(UsageError, match="another process"):
        OutputFile(path)
    assert path.read_text() == "new"


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stream: object, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with OutputFile(tmp_path / "out") as file:
        file.write("x\n")
    assert (tmp_path / "out").read_text() == "x\n"


def test_resuming_keeps_the_old_order_and_ends_in_input_order(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text(line("c") + line("a"))
    path.chmod(0o640)
    link.symlink_to(path)
    kept = read_finished(link, ["a", "b", "c"])
    assert list(kept) == ["a", "c"]
    with OutputFile(link) as file:
        file.keep(list(kept.values()))
        file.write(line("b"))
        assert [r["id"] for r in records(path)] == ["a", "c", "b"], "not safe before the end"
        file.close(["a", "b", "c"])
    assert [r["id"] for r in records(path)] == ["a", "b", "c"]
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "out"], "a file is left over"


def test_resuming_harms_nothing_where_the_new_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text(line(0))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with OutputFile(path) as file:
        file.keep([record(0)])
        with pytest.raises(WriteFailed, match="No space"):
            file.write(line(1))
    assert records(path) == [record(0)]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_half_a_surrogate_pair_does_not_lose_a_record(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out") as file:
        file.write(as_line({"model": "m\udcff"}, "jsonl"))
    assert records(tmp_path / "out") == [{"model": "m\udcff"}]
