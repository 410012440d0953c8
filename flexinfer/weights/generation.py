"""A checkpoint's generation_config.json: what of it counts, each key of its type or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.weights.checkpoint import read_json

NAME = "generation_config.json"


def read_generation(folder: Path) -> dict[str, Any]:
    """Return the file's content, {} where there is none; raises UsageError naming file and key."""
    path = folder / NAME
    content = read_json(path) if path.is_file() else {}
    for key, value in content.items():
        if value is None or key not in _TYPES:
            continue
        fits, words = _TYPES[key]
        if not fits(value):
            raise UsageError(
                f"{path}: {key} is {value!r}, not {words}", hint=f"mend the file, or remove {key}"
            )
    return content


def _whole(value: Any) -> bool:
    """Tell whether a JSON value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    """Tell whether a JSON value is a number."""
    return _whole(value) or isinstance(value, float)


def _ids(value: Any) -> bool:
    """Tell whether a JSON value is a token id or a list of them."""
    return _whole(value) or (isinstance(value, list) and all(map(_whole, value)))


_TYPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "do_sample": (lambda value: isinstance(value, bool), "true or false"),
    "eos_token_id": (_ids, "a token id or a list of them"),
} | {
    key: (fits, words)
    for keys, fits, words in (
        (("temperature", "top_p", "min_p", "repetition_penalty"), _number, "a number"),
        (("top_k", "max_new_tokens"), _whole, "a whole number"),
    )
    for key in keys
}
