"""How the records of `generate` leave: in input order, each as soon as it can, as a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from flexinfer.errors import WriteFailed
from flexinfer.tasks.generate.records import Record

Format = Literal["text", "jsonl"]


class InOrder:
    """Passes records on in input order, as early as that order allows.

    Leaving the context passes on the finished ones that still wait for an earlier record, unless
    passing on itself failed; so a crash of the engine loses nothing that was finished.
    """

    def __init__(self, emit: Callable[[Record], None]) -> None:
        """Pass records on to `emit`."""
        self._emit, self._next = emit, 0
        self._held: dict[int, Record | None] = {}

    def __enter__(self) -> InOrder:
        """Start with record 0."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Pass on what is held, unless a closed pipe or a full disk ended the work."""
        if kind is not None and issubclass(kind, WriteFailed | BrokenPipeError):
            return
        for index in sorted(self._held):
            self._pass(self._held.pop(index))

    def put(self, index: int, record: Record | None) -> None:
        """Take the record of item `index`; None is for an item with nothing left to write."""
        assert index >= self._next, f"item {index} came twice"
        assert index not in self._held, f"item {index} came twice"
        self._held[index] = record
        while self._next in self._held:
            self._next += 1
            self._pass(self._held.pop(self._next - 1))

    def _pass(self, record: Record | None) -> None:
        if record is not None:
            self._emit(record)


def as_line(record: Record, form: Format, *, alone: bool = False, numbered: bool = False) -> str:
    """Return what is written of a record: a JSON line, or its texts, each on a line.

    A failed one leaves an empty line, so that the texts of others keep their place; `alone` it
    leaves nothing. Several texts may be `numbered`, each by a line above it.
    """
    if form == "jsonl":
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    texts = [f"{sample['text']}\n" for sample in record["outputs"]]
    if numbered and len(texts) > 1:
        texts = [f"--- sample {n} of {len(texts)}\n{x}" for n, x in enumerate(texts, start=1)]
    return "".join(texts) or ("" if alone else "\n")
