"""Taking a file for one process, whether it is there, is to be made, or is to be replaced."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from flexinfer.errors import UsageError
from flexinfer.tasks.generate.records import Record


def take(path: Path) -> TextIO | None:
    """Open and lock a file that is there, else see whether it could be made; raises OSError."""
    try:
        return _locked(_append(path, 0), path)
    except FileNotFoundError:
        check_folder(path)
        return None


def make(path: Path) -> TextIO:
    """Make and lock a file that was not there; raises UsageError where somebody else did."""
    stream = _locked(_append(path, os.O_CREAT), path)
    if is_plain(stream) and os.fstat(stream.fileno()).st_size:
        stream.close()
        raise _taken(path)
    return stream


def _append(path: Path, create: int) -> TextIO:
    """Open for appending; half a surrogate pair is written as JSON escapes it."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, (flags & ~os.O_CREAT) | create, 0o666)

    return open(path, "a", encoding="utf-8", errors="backslashreplace", opener=opener)


def replaced(path: Path, records: Sequence[Record]) -> TextIO:
    """Replace a JSON Lines file at one stroke; return the new one, open and locked."""
    target = Path(os.path.realpath(path))
    fresh = target.with_name(f".{target.name}.tmp")
    try:
        stream = _locked(_append(fresh, os.O_CREAT), fresh)
        stream.truncate(0)
        stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        stream.flush()
        os.fsync(stream.fileno())
        shutil.copymode(target, fresh)
        os.replace(fresh, target)
        return stream
    finally:
        fresh.unlink(missing_ok=True)


def _locked(stream: TextIO, path: Path) -> TextIO:
    """Take the advisory lock of a plain file, where system and file system have such locks.

    Raises UsageError where another process has it, or put another file in this one's place.
    """
    if sys.platform == "win32" or not is_plain(stream):
        return stream
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise _taken(path) from error
    except OSError:  # some network file systems have none
        return stream
    if not os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
        stream.close()
        raise _taken(path)
    return stream


def _taken(path: Path) -> UsageError:
    """Return what to raise where two processes want one file."""
    return UsageError(
        f"--output {path}: another process is writing to it",
        hint="wait for it to end, or write to another file",
    )


def check_folder(path: Path) -> None:
    """Raise OSError unless a file can be made beside, or at, `path`: by making a nameless one."""
    with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
        pass


def is_plain(stream: TextIO) -> bool:
    """Tell a file from a pipe, a terminal or a device."""
    return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
