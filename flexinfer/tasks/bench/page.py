"""A bench report as charts: speed with the spread of its rounds, floor, step times, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flexinfer.tasks.bench.format import heading, table_rows, words
from flexinfer.tasks.bench.result import BenchReport, BenchResult
from flexinfer.tasks.charts.chart import Bar, Bars, Page, Table
from flexinfer.tasks.charts.write import write_report
from flexinfer.tasks.columns import number

Figure = Callable[[BenchResult], float | None]


def write_page(report: BenchReport) -> None:
    """Write the `report_file` of the config, if any; raises WriteFailed or EnvironmentUnfit."""
    path = report.config["bench"]["report_file"]
    if path is not None:
        write_report(path, page(report))


def page(report: BenchReport) -> Page:
    """Return the page: charts of what was measured, the table, and what needs saying in words."""
    device = str(report.environment.get("device", "unknown device"))
    return Page(
        title="flexinfer bench",
        facts=[*heading(report), f"{device}, {report.started_at}"],
        charts=_charts(report.results),
        tables=[Table(title="Figures", rows=table_rows(report), words=1)],
        notes=words(report),
    )


def _charts(rows: Sequence[BenchResult]) -> list[Bars]:
    """Return the speed, and what else any row has a figure of."""
    tokens = "tokens / s: median of the rounds (bar), each round (mark)"
    speed = Bars(title="Decoded tokens a second", unit=tokens, bars=[_speed(row) for row in rows])
    floor = Bars(
        title="Share of the memory roofline",
        unit="% of the decode speed that the copy bandwidth allows",
        bars=_bars(rows, lambda row: row.roofline_pct, 1, " %"),
        limit=(100.0, "roofline"),
    )
    steps = Bars(
        title="Decode step", unit="ms: p50 (bar), p90 and p99 (marks)", bars=_step_bars(rows)
    )
    memory = Bars(
        title="Peak memory", unit="GB", bars=_bars(rows, lambda row: row.peak_memory_gb, 2, " GB")
    )
    others = (floor, steps, memory)
    return [speed, *(c for c in others if any(bar.value is not None for bar in c.bars))]


def _label(row: BenchResult) -> str:
    """Name a row as the other formats do."""
    return f"{row.backend} batch {row.max_batch_size}"


def _speed(row: BenchResult) -> Bar:
    """Return the speed of a row with that of each round which counts."""
    flagged = row.flagged_rounds
    timed = enumerate(zip(row.round_tokens, row.wall_times_s, strict=True), 1)
    points = [tokens / wall for at, (tokens, wall) in timed if at not in flagged]
    value = row.decode_tps_median
    text = "failed" if row.error else "-" if value is None else f"{value:,.0f}"
    return Bar(label=_label(row), value=value, text=text, points=points)


def _bars(rows: Sequence[BenchResult], figure: Figure, digits: int, unit: str) -> list[Bar]:
    """Return a bar of one figure for each row."""
    values = [figure(row) for row in rows]
    texts = ["-" if value is None else number(value, digits) + unit for value in values]
    return [
        Bar(label=_label(row), value=value, text=text)
        for row, value, text in zip(rows, values, texts, strict=True)
    ]


def _step_bars(rows: Sequence[BenchResult]) -> list[Bar]:
    """Return the median step of each row, its slow ones marked."""
    bars = _bars(rows, lambda row: (row.step_ms or {}).get("p50"), 2, " ms")
    slow = [[(row.step_ms or {})[p] for p in ("p90", "p99") if row.step_ms] for row in rows]
    return [
        Bar(label=bar.label, value=bar.value, text=bar.text, points=points)
        for bar, points in zip(bars, slow, strict=True)
    ]
