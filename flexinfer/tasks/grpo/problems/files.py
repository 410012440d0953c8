"""Problems of a user's file, JSON Lines or parquet; a bad line is named by its number.

A row has `prompt` (raw text, or messages) or `messages`, `answer` (text or a number; left out in
every row where the reward needs none), and any other columns, which rewards are given by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from flexinfer.errors import RequestError, UsageError, one_line
from flexinfer.tasks.grpo.extras import need
from flexinfer.tasks.grpo.problems.problem_set import Problems, Row
from flexinfer.tasks.grpo.problems.row import checked

REWARDS = ("exact-answer",)
_UTF8_MARK = b"\xef\xbb\xbf"


class _Numbered(NamedTuple):
    """A row and how it is called where it is complained of."""

    place: str
    row: Row


def from_file(name: str) -> Problems:
    """Read the file `name`, whose suffix is one of READERS.

    Raises UsageError, EnvironmentUnfit where parquet cannot be read here.
    """
    reader = READERS[Path(name).suffix.lower()]
    try:
        numbered = [*reader(name)]
    except OSError as error:
        raise UsageError(f"--dataset {name}: {error.strerror or one_line(error)}") from error
    if not numbered:
        raise UsageError(f"--dataset {name} holds no problems")
    rows = _aligned(name, numbered)
    notice = f"problems: {name}, {len(rows)} rows"
    return Problems(name=name, rows=rows, rewards=REWARDS, notices=(notice,))


def _aligned(name: str, numbered: Sequence[_Numbered]) -> list[Row]:
    """Give all rows the columns of any; raises UsageError where prompts or answers differ."""
    first = numbered[0].row
    answered = next((place for place, row in numbered if "answer" in row), None)
    for place, row in numbered:
        if isinstance(row["prompt"], str) != isinstance(first["prompt"], str):
            said = f"raw text here and messages there: {numbered[0].place} is unlike it"
            raise UsageError(f"--dataset {name}, {place}: {said}", hint="give all in one form")
        if answered is not None and "answer" not in row:
            said = f"answer is missing, which {answered} has"
            raise UsageError(f"--dataset {name}, {place}: {said}", hint="null is no answer")
    columns = dict.fromkeys(["prompt", "answer", *(key for _, row in numbered for key in row)])
    return [{column: row.get(column) for column in columns} for _, row in numbered]


def _checked(name: str, place: str, record: Any) -> _Numbered:
    """Check a record; raises UsageError that names its place."""
    try:
        if not isinstance(record, Mapping):
            raise RequestError("not an object")
        return _Numbered(place, checked(record))
    except RequestError as error:
        raise UsageError(f"--dataset {name}, {place}: {error.message}") from error


def _json_lines(name: str) -> Iterator[_Numbered]:
    """Read JSON Lines in UTF-8; blank lines do not count."""
    with open(name, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            bare = line.removeprefix(_UTF8_MARK) if number == 1 else line
            if bare.strip():
                place = f"line {number}"
                yield _checked(name, place, _parsed(name, place, bare))


def _parsed(name: str, place: str, line: bytes) -> Any:
    """Parse a line; raises UsageError."""
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"--dataset {name}, {place}: not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--dataset {name}, {place}: not JSON: {one_line(error)}") from error


def _parquet(name: str) -> Iterator[_Numbered]:
    """Read a parquet file batch by batch; rows count from 1."""
    parquet = need("pyarrow.parquet", f"--dataset {name}", "grpo")
    arrow_error = need("pyarrow", f"--dataset {name}", "grpo").ArrowException
    try:
        with open(name, "rb") as stream:
            for number, record in enumerate(_records(parquet.ParquetFile(stream)), start=1):
                yield _checked(name, f"row {number}", record)
    except arrow_error as error:
        raise UsageError(f"--dataset {name} is no parquet file: {one_line(error)}") from error
    except (OverflowError, UnicodeDecodeError) as error:
        raise UsageError(f"--dataset {name} cannot be read: {one_line(error)}") from error


def _records(file: Any) -> Iterable[Any]:
    """Yield the rows of a ParquetFile as Python values."""
    for batch in file.iter_batches():
        yield from batch.to_pylist()


READERS: Mapping[str, Callable[[str], Iterator[_Numbered]]] = MappingProxyType(
    {".jsonl": _json_lines, ".parquet": _parquet}
)
"""Suffix -> reader of that kind of file."""
