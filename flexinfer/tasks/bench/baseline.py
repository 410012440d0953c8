"""Hold a run against an earlier one: read its file, match rows by key, judge the change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.tasks.bench.result import KEY, BenchResult, Comparison

Baseline = Mapping[tuple[object, ...], Mapping[str, Any]]
LATER: Mapping[str, Any] = {"n_samples": 1}
"""Names of KEY that older files lack, and what they would hold."""


def read_baseline(path: str) -> Baseline:
    """Read the rows of a file that bench wrote, by key; raises UsageError for anything else."""
    hint = "give a file that flexinfer bench --stats-path wrote"
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"--baseline {path} is not JSON", hint=hint) from error
    rows = document.get("results") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(_usable(row) for row in rows):
        raise UsageError(f"--baseline {path} holds no bench results", hint=hint)
    rows = [{**LATER, **row} for row in rows]
    return {tuple(row[name] for name in KEY): row for row in rows}


def check_covered(keys: Iterable[tuple[object, ...]], baseline: Baseline, path: str) -> None:
    """Raise UsageError, before anything is timed, where no key of this run has a figure there."""
    wanted = list(keys)
    if any(baseline.get(key, {}).get("decode_tps_median") for key in wanted):
        return
    shown = ", ".join(f"{name} {value}" for name, value in zip(KEY, wanted[0], strict=True))
    raise UsageError(
        f"--baseline {path} has no figure for this run ({shown})",
        hint="compare runs of the same model, adapter, batch size and workload",
    )


def compare(
    rows: Sequence[BenchResult], baseline: Baseline, fail_below: float | None
) -> tuple[Comparison, ...]:
    """Compare each row; slower by more than `fail_below` percent is a regression (None: never).

    A row without a figure on either side is said to be so; without one now where the baseline
    has one, it is a regression when a threshold was given.
    """
    return tuple(_compare(row, baseline.get(row.key), fail_below) for row in rows)


def _compare(
    row: BenchResult, old: Mapping[str, Any] | None, fail_below: float | None
) -> Comparison:
    """Compare one row with the baseline's row of the same key."""
    label = f"{row.backend} {row.model_name} batch {row.max_batch_size}"
    before = float(old["decode_tps_median"]) if old and old["decode_tps_median"] else None
    now = row.decode_tps_median
    change = 100.0 * (now / before - 1.0) if before and now is not None else None
    lost = before is not None and (change is None or change < -(fail_below or 0.0))
    note = "no figure in the baseline" if before is None else "no figure in this run"
    return Comparison(
        label=label,
        decode_tps_baseline=before,
        decode_tps_now=now,
        change_pct=change,
        regression=lost and fail_below is not None,
        note=note if change is None else "",
    )


def _usable(row: object) -> bool:
    """Tell whether a row has its whole key and a figure or null."""
    if not isinstance(row, dict) or not set(KEY) <= set(row) | set(LATER):
        return False
    figure = row.get("decode_tps_median")
    return figure is None or (isinstance(figure, int | float) and figure > 0)
