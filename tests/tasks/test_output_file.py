"""A file is replaced at one stroke or not at all, and what cannot be written is named in time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from flexinfer.errors import WriteFailed
from flexinfer.tasks.output_file import check_writable, write_whole


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, b"one", "--x")
    path.chmod(0o640)
    write_whole(path, b"two", "--x")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteFailed, match=r"--x .*a: No space left on device"):
        write_whole(path, b"new", "--x")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_whole(link, b"new", "--x")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_device_is_written_to() -> None:
    write_whole(Path("/dev/null"), b"x", "--x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(WriteFailed, match="--x /dev/full: No space left on device"):
        write_whole(Path("/dev/full"), b"x", "--x")


def test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="is a folder"):
        check_writable(tmp_path, "--x")
    with pytest.raises(WriteFailed, match="the folder does not exist"):
        check_writable(tmp_path / "no" / "a", "--x")
    check_writable(tmp_path / "a", "--x")
    assert not list(tmp_path.iterdir())
