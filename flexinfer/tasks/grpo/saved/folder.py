"""The output folder: whether it can be written, and that one run at a time writes into it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flexinfer.errors import UsageError, WriteFailed

FLAG = "--output-dir"


def check_folder(folder: Path) -> None:
    """Raise WriteFailed where files could not be written into `folder`; nothing is created.

    And UsageError for a name that no card could tell.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{FLAG} {str(folder)!a} is no text in UTF-8") from error
    there = existing(folder)
    if not there.is_dir():
        raise WriteFailed(f"{FLAG} {folder}: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise WriteFailed(f"{FLAG} {folder}: {there} is not writable")


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that there is."""
    path = folder.absolute()
    return next(p for p in (path, *path.parents) if p.exists())


def ahead(path: Path, folder: Path) -> Path:
    """Return what to check in place of a file that will lie in `folder`, once that is made."""
    return existing(folder) / path.name if path.absolute().parent == folder.absolute() else path


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other runs out of it as long as this one lives.

    Raises WriteFailed, or UsageError where another run writes into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise WriteFailed(f"cannot write {FLAG} {folder}: {error.strerror}") from error
    try:
        _lock(handle, folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_unlocked(folder: Path) -> None:
    """Raise UsageError where another run writes into the folder; it need not be there."""
    if not folder.is_dir() or not os.access(folder, os.R_OK):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder, fcntl.LOCK_SH)  # others may look at the same time
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, kind: int) -> None:
    """Lock an open folder until it is closed; raises UsageError where it is locked."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{FLAG} {folder}: another run is writing into it",
            hint="wait for its end, or choose another folder",
        ) from error
    except OSError:  # some network drives have no locks: runs on them are not kept apart
        return
