"""`--resume`: what an earlier run finished, and whether it was the same run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.errors import UsageError

Record = dict[str, Any]
_SAME = "resume with the same input and options, or write to another file"


def read_finished(path: Path, ids: Sequence[str | int]) -> dict[str | int, Record]:
    """Return the finished records of an earlier run by id, in the order of `ids`.

    A record with an error is not finished, nor is a last line that a crash cut off. Raises
    UsageError where the file is not the output of a run on these ids.
    """
    known = set(ids)
    if len(known) != len(ids):
        raise UsageError("--resume needs ids that differ", hint="give each input line its own id")
    if not path.exists():
        return {}
    if not path.is_file():
        raise UsageError(f"--resume: {path} is not a plain file")
    records = {record["id"]: record for record in _records(path)}
    for name in records:
        if name not in known:
            raise UsageError(
                f"--resume: {path} holds id {name!r}, which the input does not", hint=_SAME
            )
    return {i: records[i] for i in ids if i in records and not records[i].get("error")}


def check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise UsageError where a finished record was made from other values than asked for now."""
    for key, value in new.items():
        if old.get(key) != value:
            raise UsageError(
                f"--resume: record {old['id']!r} was made with another {key}", hint=_SAME
            )


def replace_records(path: Path, records: Sequence[Record]) -> None:
    """Replace the content of a JSON Lines file at one stroke; raises OSError."""
    fresh = path.with_name(f".{path.name}.tmp")
    try:
        with fresh.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def restore_order(path: Path, order: Sequence[str | int]) -> None:
    """Put the records of a file into the order of their ids; raises OSError."""
    place = {name: index for index, name in enumerate(order)}
    records = _records(path)
    ordered = sorted(records, key=lambda record: place[record["id"]])
    if ordered != records:
        replace_records(path, ordered)


def _records(path: Path) -> list[Record]:
    """Read the records of an output file, without a last line that is cut off."""
    *lines, rest = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            raise UsageError(
                f"--resume: line {number} of {path} is no record of generate", hint=_SAME
            )
        records.append(record)
    whole = _parse(rest)
    return [*records, whole] if whole is not None else records


def _parse(line: bytes) -> Record | None:
    """Parse a line of an output file; None where it is no record."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    ok = isinstance(record, dict) and isinstance(record.get("id"), str | int)
    return record if ok and isinstance(record.get("outputs"), list) else None
