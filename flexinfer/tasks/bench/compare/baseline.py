"""Hold a run against an earlier one: read its file, match rows by key, judge the change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.tasks.bench.compare.noise import noise_pct, round_rates
from flexinfer.tasks.bench.compare.side_by_side import labels
from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.result import KEY, BenchResult, Comparison
from flexinfer.tasks.environment import SCHEMA_VERSION

Row = Mapping[str, Any]
LATER: Row = {"n_samples": 1, "lora_mode": None, "quantization": None}
"""Names of KEY that older files lack, and what they would hold."""

LEAST, MOST = 1e-6, 1e12
"""Bounds of what can be tokens a second."""

SETTINGS = ("ignore_eos", "temperature", "seed")
"""What belongs to the workload beside KEY, and is said once for all rows."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """An earlier run: where it was read, its rows by key, and its config of the workload."""

    path: str
    rows: Mapping[tuple[object, ...], Row]
    settings: Mapping[str, object]


def read_baseline(path: str) -> Baseline:
    """Read a file that bench wrote; raises UsageError for anything else."""
    hint = "give a file that flexinfer bench --stats-path wrote"
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--baseline {path} is not JSON", hint=hint) from error
    known = isinstance(document, dict) and document.get("command", "bench") == "bench"
    rows = document.get("results") if known else None
    if not isinstance(rows, list) or not rows or not all(_usable(row) for row in rows):
        raise UsageError(f"--baseline {path} holds no bench results", hint=hint)
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"--baseline {path} has schema version {_shown(version)}, this version reads "
            f"{SCHEMA_VERSION}",
            hint=hint,
        )
    rows = [{**LATER, **row} for row in rows]
    by_key = {tuple(row[name] for name in KEY): row for row in rows}
    return Baseline(path=path, rows=by_key, settings=_settings(document))


def check_comparable(
    planned: Sequence[BenchResult], baseline: Baseline, config: BenchConfig
) -> None:
    """Raise UsageError where nothing that is going to run can be held against `baseline`."""
    hint = "compare runs of the same model, adapter, batch size and workload"
    now = asdict(config)
    for name, there in baseline.settings.items():
        if there != now[name]:
            raise UsageError(
                f"--baseline {baseline.path} is of another workload: {name} {now[name]}, "
                f"there {_shown(there)}",
                hint=hint,
            )
    if any(baseline.rows.get(row.key, {}).get("decode_tps_median") for row in planned):
        return
    nearest = min((_differences(row, old) for row in planned for old in baseline.rows), key=len)
    raise UsageError(
        f"--baseline {baseline.path} has no figure for this run: "
        + (", ".join(nearest) or "its rows have none"),
        hint=hint,
    )


def compare(
    rows: Sequence[BenchResult], baseline: Baseline, fail_below: float | None
) -> tuple[Comparison, ...]:
    """Compare each row; slower by more than `fail_below` percent is a regression (None: never).

    A loss that the scatter of the rounds explains is told and is none; where that scatter could
    hide a loss beyond `fail_below` the comparison is inconclusive. A row without a figure on
    either side is said to be so; without one now where the baseline has one, it is a regression
    when a threshold was given.
    """
    names = labels(rows)
    return tuple(
        _compare(row, f"{name}, {row.model_name}", baseline.rows.get(row.key), fail_below)
        for row, name in zip(rows, names, strict=True)
    )


def _compare(row: BenchResult, label: str, old: Row | None, limit: float | None) -> Comparison:
    """Compare one row with the baseline's row of the same key."""
    before = float(old["decode_tps_median"]) if old and old["decode_tps_median"] else None
    now = row.decode_tps_median
    change = 100.0 * (now / before - 1.0) if before and now is not None else None
    noise = (
        noise_pct(round_rates(vars(row)), round_rates(old)) if old and change is not None else None
    )
    if change is None:
        note = "no figure in the baseline" if before is None else "no figure in this run"
    else:
        note = _note(change, noise, limit)
    hidden = change is not None and _hides(change, noise, limit)
    beyond = max(limit or 0.0, noise or 0.0)
    lost = before is not None and (change is None or change < -beyond)
    return Comparison(
        label=label,
        decode_tps_baseline=before,
        decode_tps_now=now,
        change_pct=change,
        noise_pct=noise,
        regression=lost and limit is not None,
        inconclusive=hidden,
        note=note,
    )


def _note(change: float, noise: float | None, limit: float | None) -> str:
    """Say how far a change can be trusted."""
    if noise is None:
        return "noise unknown: it takes two rounds on both sides" if change else ""
    if _hides(change, noise, limit):
        return (
            f"noise {noise:.1f} % is beyond --fail-below {limit:g}: no smaller loss could be "
            "detected, take more rounds (--n-rounds)"
        )
    return "" if abs(change) > noise else "within the noise"


def _hides(change: float, noise: float | None, limit: float | None) -> bool:
    """Tell whether a loss beyond `limit` is neither found nor ruled out: the noise is too large."""
    if limit is None or noise is None or noise <= limit:
        return False
    return -noise <= change < noise - limit


def _differences(row: BenchResult, key: tuple[object, ...]) -> list[str]:
    """Say what of KEY differs between a row of this run and a key of the baseline."""
    sides = zip(KEY, row.key, key, strict=True)
    return [f"{name} {here}, there {_shown(there)}" for name, here, there in sides if here != there]


def _shown(value: object) -> str:
    """Return what a file says with its control characters escaped: none steers a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))


def _settings(document: Mapping[str, Any]) -> dict[str, object]:
    """Return those SETTINGS that a file tells."""
    config = document.get("config")
    bench = config.get("bench") if isinstance(config, dict) else None
    return {n: bench[n] for n in SETTINGS if n in bench} if isinstance(bench, dict) else {}


def _usable(row: object) -> bool:
    """Tell whether a row has its whole key, of plain values, a figure or null, and sound rounds."""
    if not isinstance(row, dict) or not set(KEY) <= set(row) | set(LATER):
        return False
    try:
        rates = round_rates(row)
    except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError):
        return False
    if any(isinstance(row.get(name), list | dict) for name in KEY):
        return False
    figure = row.get("decode_tps_median")
    return (figure is None or _is_rate(figure)) and all(map(_is_rate, rates or ()))


def _is_rate(value: object) -> bool:
    """Tell whether a value can be tokens a second."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return LEAST < value < MOST
