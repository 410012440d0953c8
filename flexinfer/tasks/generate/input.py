"""What `generate` is asked: prompts of the command line or JSON Lines, each an `Item`.

A line that cannot be used becomes an item with an `error`, at its place; the others go on.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

from flexinfer.config import SamplingParams
from flexinfer.errors import RequestError, UsageError

Message = Mapping[str, Any]
_FORMS = ("prompt", "messages", "prompt_token_ids")
_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(SamplingParams)}
_KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple: "a string or a list of strings",
}


@dataclass(frozen=True, kw_only=True)
class Item:
    """One request as it was given: exactly one of `prompt` (raw), `messages`, `prompt_token_ids`.

    `sampling` holds the keys of the line alone. Where `error` is set nothing else but `id` counts.
    """

    id: str | int
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def items_from_prompts(
    prompts: Sequence[str], *, raw: bool, system: str | None = None
) -> tuple[Item, ...]:
    """Make each prompt one user message, after the `system` message, or raw text where `raw`."""
    if raw and system is not None:
        raise UsageError("--system needs a chat template", hint="leave out --chat-template none")
    return tuple(_from_prompt(index, text, raw, system) for index, text in enumerate(prompts))


def items_from_lines(lines: Iterable[bytes], system: str | None = None) -> tuple[Item, ...]:
    """Read JSON Lines (UTF-8); blank lines do not count; a missing `id` is the item's position."""
    return tuple(
        _from_line(number, line, position, system)
        for position, (number, line) in enumerate(_numbered(lines))
    )


def items_from_file(path: str, stdin: BinaryIO, system: str | None = None) -> tuple[Item, ...]:
    """Read the JSON Lines of a file, or of `stdin` where `path` is `-`; raises UsageError."""
    if path == "-":
        return items_from_lines(stdin, system)
    try:
        with open(path, "rb") as stream:
            return items_from_lines(stream, system)
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror}") from error


def _from_prompt(index: int, text: str, raw: bool, system: str | None) -> Item:
    """Make an item of a positional prompt."""
    try:
        _check_unicode(text)
        if not text:
            raise RequestError("the prompt is empty")
    except RequestError as error:
        return Item(id=index, error=error.message)
    if raw:
        return Item(id=index, prompt=text)
    return Item(id=index, messages=_with_system(({"role": "user", "content": text},), system))


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of the lines that are not blank, without a BOM."""
    for number, line in enumerate(lines, start=1):
        bare = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if bare.strip():
            yield number, bare


def _from_line(number: int, line: bytes, position: int, system: str | None) -> Item:
    """Make an item of one line; what is wrong with it becomes its `error`."""
    name: str | int = position
    try:
        record = _object(line)
        name = _id(record, position)
        return _item(record, name, system)
    except RequestError as error:
        return Item(id=name, error=f"line {number}: {error.message}")


def _object(line: bytes) -> dict[str, Any]:
    """Parse a line into a JSON object; raises RequestError."""
    try:
        text = line.decode("utf-8")
        record = json.loads(text)
    except UnicodeDecodeError as error:
        raise RequestError("not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise RequestError("not a JSON object")
    if "\\u" in text:
        _check_unicode(json.dumps(record, ensure_ascii=False))
    return record


def _id(record: Mapping[str, Any], position: int) -> str | int:
    """Return the line's `id`, or its position."""
    name = record.get("id", position)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise RequestError("id is neither a string nor an integer")
    return name


def _item(record: Mapping[str, Any], name: str | int, system: str | None) -> Item:
    """Check a parsed line and make an item of it; raises RequestError."""
    known = ["id", *_FORMS, *_DEFAULTS]
    for key in record:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"unknown key {key!r}; {hint}")
    given = [form for form in _FORMS if record.get(form) is not None]
    if len(given) != 1:
        raise RequestError(f"needs exactly one of {', '.join(_FORMS)}, has {len(given)}")
    content: dict[str, Any] = {given[0]: _CHECKS[given[0]](record[given[0]])}
    if "messages" in content:
        content["messages"] = _with_system(content["messages"], system)
    sampling = {key: _typed(key, record[key]) for key in _DEFAULTS if record.get(key) is not None}
    return Item(id=name, sampling=sampling, **content)


def _typed(key: str, value: Any) -> Any:
    """Return a sampling value of its type; raises RequestError for another type."""
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


def _with_system(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    """Put the `--system` message first, unless the messages bring their own."""
    if system is None or messages[0]["role"] == "system":
        return messages
    return ({"role": "system", "content": system}, *messages)


def _check_unicode(text: str) -> str:
    """Refuse half a surrogate pair, which no tokenizer can take."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("not valid Unicode text") from error
    return text


def _check_prompt(value: Any) -> str:
    """Check a raw prompt."""
    if not isinstance(value, str):
        raise RequestError("prompt is not a string")
    if not value:
        raise RequestError("the prompt is empty")
    return value


def _check_messages(value: Any) -> tuple[Message, ...]:
    """Check that messages are objects with a role and a content."""
    if not isinstance(value, list) or not value:
        raise RequestError("messages is not a list of at least one message")
    for message in value:
        ok = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not ok or not isinstance(message.get("content"), str | list):
            raise RequestError("a message is not an object with role and content")
    return tuple(value)


def _check_ids(value: Any) -> tuple[int, ...]:
    """Check that token ids are integers, 0 or more; the vocabulary is checked later."""
    if not isinstance(value, list) or any(type(token) is not int or token < 0 for token in value):
        raise RequestError("prompt_token_ids is not a list of integers, 0 or more")
    if not value:
        raise RequestError("the prompt is empty")
    return tuple(value)


_CHECKS = {"prompt": _check_prompt, "messages": _check_messages, "prompt_token_ids": _check_ids}
