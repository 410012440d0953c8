"""Where the time of a run goes: before the first round, and within one."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.tasks.bench.compare.side_by_side import labels
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.charts.chart import Parts, Series


def breakdowns(rows: Sequence[BenchResult]) -> list[Parts]:
    """Return both charts, of the rows that have figures."""
    done = [
        (label, row) for label, row in zip(labels(rows), rows, strict=True) if row.median_wall_s
    ]
    if not done:
        return []
    names, own = [label for label, _ in done], [row for _, row in done]
    return [
        _chart("One round", names, [round_parts(row) for row in own]),
        _chart("Before the rounds", names, [start_parts(row) for row in own]),
    ]


def round_parts(row: BenchResult) -> dict[str, float]:
    """Return seconds of the median round: prefill, the floor of decoding, what is above it."""
    wall, prefill = row.median_wall_s or 0.0, row.prefill_s or 0.0
    decode = max(wall - prefill, 0.0)
    floor = min(row.roofline.decode_floor_s, decode) if row.roofline else 0.0
    parts = {"prefill": min(prefill, wall)}
    if row.roofline is None:
        return parts | {"decode": decode}
    return parts | {"decode: reading memory": floor, "decode: above the floor": decode - floor}


def start_parts(row: BenchResult) -> dict[str, float]:
    """Return seconds of what comes once: loading, compiling, capturing, the rest of starting.

    The rest is opening the engine, the output gate and what the warm-up took longer than a round,
    less compiling and capturing, all of which fell into one of these.
    """
    told = (row.compile_s or 0.0) + (row.capture_s or 0.0)
    over = max((row.warm_up_s or 0.0) - (row.median_wall_s or 0.0), 0.0)
    spent = (row.open_s or 0.0) + (row.gate_s or 0.0) + over
    return {
        "load": row.load_s or 0.0,
        "compile": row.compile_s or 0.0,
        "capture": row.capture_s or 0.0,
        "other start": max(spent - told, 0.0),
    }


def _chart(title: str, names: Sequence[str], found: Sequence[dict[str, float]]) -> Parts:
    """Return a chart of the parts that any row has."""
    kinds = list(dict.fromkeys(kind for parts in found for kind in parts))
    shown = [kind for kind in kinds if any(parts.get(kind) for parts in found)]
    return Parts(
        title=title,
        unit="seconds",
        labels=names,
        texts=[f"{sum(parts.values()):.3g} s" for parts in found],
        series=[Series(label=k, values=[parts.get(k, 0.0) for parts in found]) for k in shown],
    )
