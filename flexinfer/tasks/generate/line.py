"""One line of JSON Lines: parsed, and everything checked that can be without a model.

Whatever is wrong with a line is a RequestError that says so on one line.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flexinfer.config import SamplingParams
from flexinfer.engine.requests.chat import check_messages
from flexinfer.errors import RequestError

Message = Mapping[str, Any]
_FORMS = ("prompt", "messages", "prompt_token_ids")
_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(SamplingParams)}
_KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple: "a string or a list of strings",
}


def parse(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; bytes that are not UTF-8 become half surrogate pairs."""
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        _check_utf8(line)
        raise RequestError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise RequestError("not a JSON object")
    return record


def own_id(record: Mapping[str, Any]) -> str | int | None:
    """Return the `id` that a line brings, or None."""
    name = record.get("id")
    if name is None:
        return None
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise RequestError("id is neither a string nor an integer")
    return check_text(name) if isinstance(name, str) else name


def content(record: Mapping[str, Any], line: bytes) -> dict[str, Any]:
    """Return the prompt, in its form, and the `sampling` of a record parsed from `line`."""
    _check_utf8(line)
    if b"\\u" in line:
        try:
            check_text(json.dumps(record, ensure_ascii=False))
        except RecursionError as error:
            raise RequestError("nested too deeply") from error
    _check_keys(record)
    given = [form for form in _FORMS if record.get(form) is not None]
    if len(given) != 1:
        raise RequestError(f"needs exactly one of {', '.join(_FORMS)}, has {len(given)}")
    sampling = {key: _typed(key, record[key]) for key in _DEFAULTS if record.get(key) is not None}
    return {given[0]: _CHECKS[given[0]](record[given[0]]), "sampling": sampling}


def check_text(text: str) -> str:
    """Refuse half a surrogate pair, which no tokenizer can take."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("not valid Unicode text") from error
    return text


def _check_utf8(line: bytes) -> None:
    """Refuse bytes that are not UTF-8."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError("not UTF-8") from error


def _check_keys(record: Mapping[str, Any]) -> None:
    """Refuse a key that means nothing here."""
    known = ["id", *_FORMS, *_DEFAULTS]
    for key in record:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"unknown key {key!r}; {hint}")


def _typed(key: str, value: Any) -> Any:
    """Return a sampling value of its type."""
    default = _DEFAULTS[key]
    kind = int if default is None else type(default)
    if kind is tuple:
        words = [value] if isinstance(value, str) else value
        ok = isinstance(words, list) and all(isinstance(word, str) for word in words)
        value = tuple(words) if ok else value
    else:
        allowed = (int, float) if kind is float else kind
        ok = isinstance(value, allowed) and (kind is bool) == isinstance(value, bool)
    if not ok:
        raise RequestError(f"{key} is not {_KINDS[kind]}")
    return value


def _check_prompt(value: Any) -> str:
    """Check a raw prompt."""
    if not isinstance(value, str):
        raise RequestError("prompt is not a string")
    if not value:
        raise RequestError("the prompt is empty")
    return value


def _check_messages(value: Any) -> tuple[Message, ...]:
    """Check that messages are objects with a role and a content, both strings."""
    if not isinstance(value, list) or not value:
        raise RequestError("messages is not a list of at least one message")
    check_messages(value)
    return tuple(value)


def _check_ids(value: Any) -> tuple[int, ...]:
    """Check that token ids are integers, 0 or more; the vocabulary is checked later."""
    if not isinstance(value, list) or any(type(token) is not int or token < 0 for token in value):
        raise RequestError("prompt_token_ids is not a list of integers, 0 or more")
    if not value:
        raise RequestError("the prompt is empty")
    return tuple(value)


_CHECKS = {"prompt": _check_prompt, "messages": _check_messages, "prompt_token_ids": _check_ids}
