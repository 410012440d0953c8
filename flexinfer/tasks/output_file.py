"""Files that an option names, written whole: unfit ones are found early, none is half there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flexinfer.errors import WriteFailed


def check_writable(path: Path, flag: str) -> None:
    """Raise WriteFailed, naming `flag`, where `path` could not be written; nothing is created."""
    if path.is_dir():
        raise WriteFailed(f"{flag} {path} is a folder")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise WriteFailed(f"{flag} {path}: the folder does not exist")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise WriteFailed(f"{flag} {path} is not writable")
    if shutil.disk_usage(folder).free == 0 and not path.is_char_device():
        raise WriteFailed(f"{flag} {path}: no space left on its disk")


def write_whole(path: Path, content: bytes, flag: str) -> None:
    """Write a file at one stroke, a pipe or device as it comes; raises WriteFailed."""
    target = Path(os.path.realpath(path))
    try:
        replaceable = target.is_file() and os.access(target.parent, os.W_OK)
        if replaceable or not target.exists():
            _replace(target, content)
        else:
            target.write_bytes(content)
    except OSError as error:
        raise WriteFailed(f"{flag} {path}: {error.strerror}") from error


def _replace(target: Path, content: bytes) -> None:
    """Write beside `target`, then put it in its place, with the permissions that this one had."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, fresh)
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
