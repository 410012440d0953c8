"""Bars of a bench report: speed with the spread of its rounds, floor, step times, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flexinfer.tasks.bench.compare.noise import round_rates
from flexinfer.tasks.bench.compare.side_by_side import labels
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.bench.show.throughput import groups
from flexinfer.tasks.charts.chart import Bar, Bars
from flexinfer.tasks.columns import number

TOKENS, FLOOR = "Decoded tokens a second", "Share of the memory roofline"
SPEED = (TOKENS, FLOOR)
"""The charts that say how fast it is."""
Figure = Callable[[BenchResult], float | None]
Percentiles = Callable[[BenchResult], Mapping[str, float] | None]


def bar_charts(rows: Sequence[BenchResult]) -> list[Bars]:
    """Return the speed, and what else any row has a figure of."""
    tokens = "tokens / s: median of the rounds (bar), each round (mark)"
    speed = Bars(title=TOKENS, unit=tokens, bars=_named(rows, _speeds(rows)))
    floor = Bars(
        title=FLOOR,
        unit="% of the decode speed that the copy bandwidth allows",
        bars=_bars(rows, lambda row: row.roofline_pct, 1, " %"),
        limit=(100.0, "roofline"),
    )
    steps = _spread("Decode step", rows, lambda row: row.step_ms, 2)
    first = _spread("Time to first token", rows, lambda row: row.ttft_ms, 1)
    memory = Bars(
        title="Peak memory", unit="GB", bars=_bars(rows, lambda row: row.peak_memory_gb, 2, " GB")
    )
    others = (floor, steps, first, memory)
    return [speed, *(c for c in others if any(bar.value is not None for bar in c.bars))]


def _spread(title: str, rows: Sequence[BenchResult], found: Percentiles, digits: int) -> Bars:
    """Return a median in milliseconds, its slow ones marked."""
    bars = _bars(rows, lambda row: (found(row) or {}).get("p50"), digits, " ms", "p50 ")
    slow = [[(found(row) or {})[p] for p in ("p90", "p99") if found(row)] for row in rows]
    marked = [replace(bar, points=points) for bar, points in zip(bars, slow, strict=True)]
    return Bars(title=title, unit="ms: p50 (bar), p90 and p99 (marks)", bars=marked)


def _named(rows: Sequence[BenchResult], bars: Sequence[Bar]) -> list[Bar]:
    """Return bars with the names and colours of their rows."""
    return [
        replace(bar, label=label, group=group)
        for bar, label, group in zip(bars, labels(rows), groups(rows), strict=True)
    ]


def _speeds(rows: Sequence[BenchResult]) -> list[Bar]:
    """Return the speed of each row with that of each round which counts."""
    bars = []
    for row in rows:
        value = row.decode_tps_median
        text = "failed" if row.error else "-" if value is None else f"{value:,.0f}"
        bars.append(Bar(label="", value=value, text=text, points=round_rates(vars(row))))
    return bars


def _bars(
    rows: Sequence[BenchResult], figure: Figure, digits: int, unit: str, name: str = ""
) -> list[Bar]:
    """Return a bar of one figure for each row; `name` says which, where marks stand beside it."""
    values = [figure(row) for row in rows]
    texts = ["-" if value is None else name + number(value, digits) + unit for value in values]
    bars = [Bar(label="", value=v, text=t) for v, t in zip(values, texts, strict=True)]
    return _named(rows, bars)
