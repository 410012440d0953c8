"""`--resume`: what an earlier run finished, and whether it was the same run."""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.tasks.generate.records import Record

_WEIGHTS: Mapping[str, str] = {
    "dtype": "dtype",
    "quantization": "quantization",
    "weights_checksum": "weights",
    "adapter_sha": "adapter",
    "lora_mode": "LoRA mode",
}
"""Key of a record that tells weights apart -> its name in a complaint."""
_SAME = "resume with the same input and options, or write to another file"


def read_finished(path: Path, ids: Sequence[str | int | None]) -> dict[str | int, Record]:
    """Return the finished records of an earlier run by id, in the order of `ids`.

    A record with an error is not finished, nor is a last line that a crash cut off. Raises
    UsageError where the file is not the output of a run on these ids.
    """
    named = [name for name in ids if name is not None]
    known = set(named)
    if len(known) != len(named):
        raise UsageError("--resume needs ids that differ", hint="give each input line its own id")
    if not path.exists():
        return {}
    if not path.is_file():
        raise UsageError(f"--resume: {path} is not a plain file")
    records = {r["id"]: r for r in read_records(path) if not r.get("error")}
    for name in records:
        if name not in known:
            raise UsageError(
                f"--resume: {path} holds id {name!r}, which the input does not", hint=_SAME
            )
    return {name: records[name] for name in named if name in records}


def check_model(finished: Mapping[str | int, Record], model: str) -> None:
    """Raise UsageError where a finished record is of another model than `model`."""
    for name, record in finished.items():
        made = record.get("model")
        if made != model:
            raise UsageError(
                f"--resume: record {name!r} was made with model {made!r}, not {model!r}",
                hint=f"give --model {made}, or write to another file"
                if isinstance(made, str)
                else _SAME,
            )


def check_weights(finished: Mapping[str | int, Record], weights: Mapping[str, Any]) -> None:
    """Raise UsageError where a finished record was made with other weights than those in use."""
    for name, record in finished.items():
        for key, word in _WEIGHTS.items():
            if record.get(key) != weights.get(key):
                made, now = (
                    f"{word} {str(value)[:16]}"
                    if (value := of.get(key)) is not None
                    else f"no {word}"
                    for of in (record, weights)
                )
                raise UsageError(
                    f"--resume: record {name!r} was made with {made}, now {now} is in use",
                    hint=_SAME,
                )


def check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise UsageError where a finished record was made from other values than asked for now."""
    for key, value in new.items():
        if old.get(key) != value:
            raise made_otherwise(old["id"], key, _differences(old.get(key), value))


def made_otherwise(name: str | int | None, key: str, differences: str = "") -> UsageError:
    """Return what to raise where record `name` was made from another `key` than asked for now."""
    said = f"--resume: record {name!r} was made with another {key}"
    return UsageError(said + (f" ({differences})" if differences else ""), hint=_SAME)


def _differences(old: object, new: object) -> str:
    """Return which keys of two objects differ, and how; nothing where they are no objects."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return ""
    keys = [key for key in {**new, **old} if old.get(key) != new.get(key)]
    return "; ".join(f"{key} {old.get(key)}, now {new.get(key)}" for key in keys)


def in_order(records: Sequence[Record], order: Sequence[str | int | None]) -> list[Record]:
    """Return records in the `order` of their ids; those of one id (None) stay as they are."""
    places: dict[str | int | None, deque[int]] = defaultdict(deque)
    for index, name in enumerate(order):
        places[name].append(index)
    placed = {places[record["id"]].popleft(): record for record in records}
    return [placed[index] for index in sorted(placed)]


def read_records(path: Path) -> list[Record]:
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


def finished_ids(path: Path) -> list[str | int]:
    """Return the ids of the finished records among the lines of a file, if it can be read."""
    if not path.is_file() or not os.access(path, os.R_OK):
        return []
    with path.open("rb") as stream:
        records = [record for line in stream if (record := _parse(line)) is not None]
    return [record["id"] for record in records if not record.get("error")]


def _parse(line: bytes) -> Record | None:
    """Parse a line of an output file; None where it is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("outputs"), list):
        return None
    name = record.get("id")
    named = isinstance(name, str | int) and not isinstance(name, bool)
    return record | {"id": name} if named or record.get("error") else None
