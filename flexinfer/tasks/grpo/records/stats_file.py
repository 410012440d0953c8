"""The file of `--stats-path`: whole after every step, whatever ends the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.records.record import GrpoReport, StepRecord
from flexinfer.tasks.output_file import check_writable, write_whole

FLAG = "--stats-path"
OPTIONAL = frozenset({"kl", "grad_norm"})
"""Figures that a step may lack; where another one is null it was no finite number."""


def check_stats(path: Path) -> None:
    """Raise WriteFailed where `path` could not be written now; nothing is created."""
    check_writable(path, FLAG)


def write_stats(path: Path, report: GrpoReport) -> None:
    """Write the JSON document at one stroke, over that of the step before; raises WriteFailed."""
    write_whole(path, report.to_json().encode(), FLAG)


def read_earlier(path: Path, through: int) -> tuple[tuple[StepRecord, ...], float | None]:
    """Return an earlier run's steps up to `through`, and how much it got right before training.

    Nothing where there is no file. Raises UsageError where it is of another kind.
    """
    if not path.is_file():
        return (), None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["command"] != "train-grpo":
            raise ValueError(f"it is of {document['command']}")
        steps = [_step(given) for given in document["steps"]]
        before = document["accuracy_before"]
        if not isinstance(before, float | None):
            raise ValueError(f"accuracy_before is {before!r:.60}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{FLAG} {path} holds no steps of train-grpo: {error}", hint="name another file"
        ) from error
    return tuple(step for step in steps if step.step <= through), before


def _step(given: Mapping[str, Any]) -> StepRecord:
    """Return a step as it was written; raises KeyError, TypeError, ValueError for what is none."""
    values = {field.name: given[field.name] for field in fields(StepRecord)}
    for name, value in values.items():
        if name != "rewards" and not isinstance(value, int | float | None):
            raise ValueError(f"{name} of a step is {value!r:.60}")
    lost = (name for name, value in values.items() if value is None and name not in OPTIONAL)
    return StepRecord(**values | dict.fromkeys(lost, math.nan))
