"""What `generate` is asked: prompts of the command line or JSON Lines, each an `Item`.

A line that cannot be used becomes an item with an `error`, at its place; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.generate.line import Message, check_text, content, own_id, parse

_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One request as it was given: exactly one of `prompt` (raw), `messages`, `prompt_token_ids`.

    `sampling` holds the keys of the line alone. Where `error` is set nothing else but `id` (None
    where it is not known) and the number of the `line` counts.
    """

    id: str | int | None
    line: int | None = None
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
    require_text("--system", system or "")
    for text in prompts:
        require_text("PROMPT", text)
    return tuple(_from_prompt(index, text, raw, system) for index, text in enumerate(prompts))


def items_from_lines(lines: Iterable[bytes], system: str | None = None) -> tuple[Item, ...]:
    """Read JSON Lines (UTF-8); blank lines do not count; a missing `id` is the item's position.

    Where lines bring ids of their own, one with an error and no id that could be read has None: its
    position could be the id of another.
    """
    require_text("--system", system or "")
    items = [_from_line(number, line, system) for number, line in _numbered(lines)]
    named = any(item.id is not None for item in items)
    return tuple(
        replace(item, id=position)
        if item.id is None and not (named and item.error is not None)
        else item
        for position, item in enumerate(items)
    )


def items_from_file(
    path: str, stdin: BinaryIO | None, system: str | None = None
) -> tuple[Item, ...]:
    """Read the JSON Lines of a file, or of `stdin` where `path` is `-`; raises UsageError."""
    try:
        if path != "-":
            with open(path, "rb") as stream:
                return items_from_lines(stream, system)
        if stdin is None:
            raise UsageError("--input -: standard input is closed")
        return items_from_lines(stdin, system)
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror}") from error


def repeated_id(items: Iterable[Item]) -> str | None:
    """Say which id two lines have, and how many more do so; None where there is none such."""
    lines: dict[str | int, int | None] = {}
    again: list[Item] = []
    for item in items:
        if item.id in lines:
            again.append(item)
        elif item.id is not None:
            lines[item.id] = item.line
    if not again:
        return None
    first = again[0]
    assert first.id is not None
    said = f"id {first.id!r} stands on lines {lines[first.id]} and {first.line} of the input"
    return said + (f" ({len(again)} lines repeat an earlier id)" if len(again) > 1 else "")


def require_text(name: str, text: str) -> None:
    """Raise UsageError where the bytes given for option `name` were no UTF-8."""
    try:
        check_text(text)
    except RequestError as error:
        raise UsageError(f"{name} is {error.message}", hint="give it in UTF-8") from error


def _from_prompt(index: int, text: str, raw: bool, system: str | None) -> Item:
    """Make an item of a positional prompt."""
    if not text:
        return Item(id=index, error="the prompt is empty")
    if raw:
        return Item(id=index, prompt=text)
    return Item(id=index, messages=_with_system(({"role": "user", "content": text},), system))


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of the lines that are not blank, without a BOM."""
    for number, line in enumerate(lines, start=1):
        bare = line.removeprefix(_UTF8_MARK) if number == 1 else line
        if bare.strip():
            yield number, bare


def _from_line(number: int, line: bytes, system: str | None) -> Item:
    """Make an item of one line; what is wrong with it becomes its `error`."""
    name: str | int | None = None
    try:
        record = parse(line)
        name = own_id(record)
        values = content(record, line)
    except RequestError as error:
        return Item(id=name, line=number, error=error.message)
    if "messages" in values:
        values["messages"] = _with_system(values["messages"], system)
    return Item(id=name, line=number, **values)


def _with_system(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    """Put the `--system` message first, unless the messages bring their own."""
    if system is None or messages[0]["role"] == "system":
        return messages
    return ({"role": "system", "content": system}, *messages)
