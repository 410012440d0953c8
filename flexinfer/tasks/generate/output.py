"""Where the records of `generate` go: in input order, each as soon as it can be written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from flexinfer.errors import WriteFailed
from flexinfer.tasks.generate.resume import replace_records, restore_order

Record = dict[str, Any]
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


def as_line(record: Record, form: Format) -> str:
    """Return what is written of a record: a JSON line, or its texts, each on a line."""
    if form == "jsonl":
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    return "".join(f"{sample['text']}\n" for sample in record["outputs"]) or "\n"


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn what the system says of a failed write into WriteFailed; a closed pipe stays one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteFailed(f"cannot write {name}: {error.strerror}") from error


class OutputFile:
    """A file of records that grows record by record, so that a crash loses none of them.

    It starts with the `kept` records of an earlier run. What the file held before stays until the
    first record is written: a run that never starts destroys nothing.
    """

    def __init__(self, path: Path, form: Format, kept: Sequence[Record] = ()) -> None:
        """Open `path`; raises WriteFailed where it cannot be written."""
        self._path, self._form, self._kept = path, form, kept
        self._begun = False
        with writing(str(path)):
            self._stream = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Write one record and push it out; raises WriteFailed, or BrokenPipeError."""
        self._begin()
        with writing(str(self._path)):
            self._stream.write(as_line(record, self._form))
            self._stream.flush()

    def close(self, order: Sequence[str | int]) -> None:
        """Close the file, its records in the `order` of their ids; raises WriteFailed."""
        self._begin()
        with writing(str(self._path)):
            self._stream.close()
            if self._kept:
                restore_order(self._path, order)

    def abandon(self) -> None:
        """Close the file as it is, after a failure; raises nothing."""
        with suppress(OSError):
            self._stream.close()

    def _begin(self) -> None:
        """Drop the old content, once."""
        if self._begun:
            return
        self._begun = True
        with writing(str(self._path)):
            if self._kept:
                self._stream.close()
                replace_records(self._path, self._kept)
                self._stream = self._path.open("a", encoding="utf-8")
            elif self._path.is_file():
                self._stream.truncate(0)
