"""The safetensors of a folder: which file holds which tensor, read from the headers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from flexinfer.errors import UsageError

INDEX = "model.safetensors.index.json"


class Stored(NamedTuple):
    """Where a tensor lies and which shape it has; `parts` of one that is stored in several."""

    path: Path
    shape: tuple[int, ...]
    parts: Mapping[str, Stored] = MappingProxyType({})


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UsageError in one line where it is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.parent} has no {path.name}", hint=_cure(path.parent)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no JSON object")
    return value


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors of `folder`, as its index lists them; UsageError where one lacks."""
    if (folder / INDEX).is_file():
        names = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
        paths = [folder / name for name in names]
    else:
        single = folder / "model.safetensors"
        paths = [single] if single.is_file() else sorted(folder.glob("model*.safetensors"))
    if lost := [path.name for path in paths if not path.is_file()]:
        raise UsageError(f"{folder} lacks the weight file {lost[0]}", hint="download it again")
    if not paths:
        raise UsageError(f"{folder} holds no model.safetensors", hint=_cure(folder))
    return paths


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """List the tensors of `folder` by name; raises UsageError for missing and corrupt files."""
    found: dict[str, Stored] = {}
    for path in weight_files(folder):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors file is no dict
                found[name] = Stored(path, tuple(file.get_slice(name).get_shape()))
    return found


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raises UsageError in one line where it is corrupt."""
    from safetensors import SafetensorError, safe_open

    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the name of {path} is not UTF-8, and safetensors opens no other",
            hint="rename the folder",
        ) from error
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"{path} is no sound safetensors file: {error}", hint="download it again"
        ) from error


def _cure(folder: Path) -> str | None:
    """Say what to do with a folder that is no checkpoint, judged by what it does hold."""
    if (folder / "adapter_config.json").is_file():
        return f"this is an adapter: give its base as --model and {folder} as --adapter"
    if gguf := sorted(folder.glob("*.gguf")):
        return f"give the file: --model {gguf[0]}"
    if any(folder.glob("pytorch_model*.bin")):
        return "convert pytorch_model.bin to safetensors: save_pretrained of transformers does it"
    return None
