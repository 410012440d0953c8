"""Tiles that were tuned on this machine: one JSON file per device in the user's cache.

`$XDG_CACHE_HOME/flexinfer/tiles/<device>.json` (default `~/.cache`); its `tiles` are a device's
entries as tiles.json has them. Every run of `flexinfer bench --tune` adds the shapes of its model.
As a program, `python -m flexinfer.kernels.fast.tiles.store FILE...` prints tiles.json with the
tiles of such files in it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import triton

from flexinfer.core.cache_folder import cache_folder
from flexinfer.errors import UsageError, WriteFailed
from flexinfer.kernels.fast.tiles.format import (
    Entries,
    as_text,
    in_order,
    merged,
    shipped,
    well_formed,
)

SCHEMA = 2
SET = "set XDG_CACHE_HOME to a folder of yours"
OTHER_MAKE, MALFORMED = "it is not a tile file of this version", "its tiles are malformed"


class Stored(NamedTuple):
    """What a device's file holds; `problem` says why it was ignored."""

    tiles: Entries
    tuned_on: str | None = None
    problem: str | None = None


def path_of(device: str) -> Path:
    """Return the file of a device, by its name; raises RuntimeError where nobody is at home."""
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return cache_folder() / "tiles" / f"{slug}.json"


def read(device: str) -> Stored:
    """Return the device's tiles; a file that is broken or of another make is ignored, and said."""
    try:
        path = path_of(device)
    except RuntimeError:
        return Stored({})
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Stored({})
    except OSError as error:
        return _ignored(path, error.strerror or "it cannot be read")
    except (ValueError, RecursionError):
        return _ignored(path, "it is not JSON")
    why = complaint(document, device)
    return _ignored(path, why) if why else Stored(document["tiles"], document["tuned_on"])


def _ignored(path: Path, why: str) -> Stored:
    """Return nothing, and why."""
    return Stored({}, problem=f"{path} is ignored: {why}; `flexinfer bench --tune` makes it anew")


def complaint(document: Any, device: str) -> str | None:
    """Return why a document cannot be used for a device, or None."""
    if not _of_this_version(document):
        return OTHER_MAKE
    if document.get("device") != device:
        return f"it is of {document.get('device')!r:.60}"
    if document.get("triton") != triton.__version__:
        return f"it is of Triton {document.get('triton')!r:.40}, this is {triton.__version__}"
    day = document.get("tuned_on")
    plain = isinstance(day, str) and day.isprintable() and len(day) <= 40
    return None if plain and well_formed(document.get("tiles")) else MALFORMED


def _of_this_version(document: Any) -> bool:
    """Return whether a document says that it is a tile file as `write` makes them."""
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def check_writable(device: str) -> None:
    """Make the folder and raise WriteFailed, before anything is measured, where that cannot be."""
    try:
        folder = path_of(device).parent
    except RuntimeError as error:
        raise WriteFailed("there is no home folder to keep tiles in", hint=SET) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _failed(folder, error) from error


def write(device: str, tiles: Entries, tuned_on: str) -> Path:
    """Add tiles to the device's file, in one move; returns its path, raises WriteFailed."""
    path = path_of(device)
    document = {
        "schema": SCHEMA, "device": device, "triton": triton.__version__, "tuned_on": tuned_on,
        "tiles": in_order(merged(read(device).tiles, tiles)),
    }  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(as_text(document))
        os.replace(name, path)
    except OSError as error:
        raise _failed(path, error) from error
    return path


def _failed(path: Path, error: OSError) -> WriteFailed:
    """Return the error of a cache that cannot be written."""
    return WriteFailed(f"{path}: {error.strerror}", hint=SET)


def shipped_with(paths: Iterable[str]) -> str:
    """Return the text of tiles.json with the tiles of these files in it; raises UsageError."""
    devices = shipped()
    for path in paths:
        device, tiles = _read_whole(Path(path))
        devices[device] = in_order(merged(devices.get(device, {}), tiles))
    return as_text(devices)


def _read_whole(path: Path) -> tuple[str, Entries]:
    """Return the device and the tiles of a file, of whatever Triton; raises UsageError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: it is not JSON") from error
    if not _of_this_version(document):
        raise UsageError(f"{path}: {OTHER_MAKE}")
    device, tiles = document.get("device"), document.get("tiles")
    if not isinstance(device, str) or not well_formed(tiles):
        raise UsageError(f"{path}: {MALFORMED}")
    return device, tiles


def main(paths: Sequence[str]) -> int:
    """Print tiles.json with the tiles of these files in it, and return the exit code."""
    try:
        text = shipped_with(paths)
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    try:
        print(text, end="", flush=True)
    except OSError as error:
        print(f"error: cannot write standard output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # not tried again at exit
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
