"""A bench report as a page: first figures, charts, every figure, the output gate, the settings."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.tasks.bench.compare.side_by_side import form_of, labels, work_of
from flexinfer.tasks.bench.lanes.settings import settings
from flexinfer.tasks.bench.result import BenchReport, BenchResult
from flexinfer.tasks.bench.show.breakdown import breakdowns
from flexinfer.tasks.bench.show.charts import SPEED, bar_charts
from flexinfer.tasks.bench.show.format import heading, words
from flexinfer.tasks.bench.show.tables import tables
from flexinfer.tasks.bench.show.throughput import throughput
from flexinfer.tasks.charts.chart import AnyChart, Page, Tile
from flexinfer.tasks.charts.write import write_report
from flexinfer.tasks.columns import number


def write_page(report: BenchReport) -> None:
    """Write the `report_file` of the config, if any; raises WriteFailed or EnvironmentUnfit."""
    path = report.config["bench"]["report_file"]
    if path is not None:
        write_report(path, page(report))


def page(report: BenchReport) -> Page:
    """Return the page: what was measured, what was checked, and how it was run."""
    device = str(report.environment.get("device", "unknown device"))
    models = ", ".join(dict.fromkeys(row.model_name for row in report.results))
    return Page(
        title=f"flexinfer bench: {models}" if models else "flexinfer bench",
        facts=[*heading(report), f"{device}, {report.started_at}"],
        charts=_charts(report.results),
        tables=[*tables(report), *settings(report)],
        notes=words(report),
        verdict=(report.verdict, report.verdict == "ok"),
        tiles=_tiles(report.results),
    )


def _charts(rows: Sequence[BenchResult]) -> list[AnyChart]:
    """Return the charts: speed first, then where the time goes, then the rest."""
    bars = bar_charts(rows)
    speed = [chart for chart in bars if chart.title in SPEED]
    others = [chart for chart in bars if chart.title not in SPEED]
    return [*throughput(rows), *speed, *breakdowns(rows), *others]


def _tiles(rows: Sequence[BenchResult]) -> list[Tile]:
    """Return the fastest row's figures, and by how much it leads another back end."""
    done = [(row.decode_tps_median, at) for at, row in enumerate(rows) if row.decode_tps_median]
    if not done:
        return []
    speed, at = max(done)
    best, label = rows[at], labels(rows)[at]
    ttft, step = best.ttft_ms or {}, best.step_ms or {}
    found = [
        ("tokens a second", f"{speed:,.0f}", label),
        _lead(rows, best),
        ("of the memory roofline", _figure(best.roofline_pct, 1, " %"), "decoding alone"),
        ("first token, p50", _figure(ttft.get("p50"), 0, " ms"), _p99(ttft, 0)),
        ("decode step, p50", _figure(step.get("p50"), 2, " ms"), _p99(step, 2)),
        ("peak memory", _figure(best.peak_memory_gb, 2, " GB"), label),
    ]
    return [Tile(title=t, value=v, note=n) for t, v, n in found if v != "-"]


def _lead(rows: Sequence[BenchResult], best: BenchResult) -> tuple[str, str, str]:
    """Return how many times the best row is as fast as the next back end at the same batch."""
    others = [
        (row.decode_tps_median, row.backend, row)
        for row in rows
        if row.backend != best.backend and row.decode_tps_median and work_of(row) == work_of(best)
    ]
    if not others or not best.decode_tps_median:
        return "", "-", ""
    speed, name, row = max(others, key=lambda other: other[:2])
    form = "" if row.lora_mode == best.lora_mode else f", there {form_of(row)}"
    return f"times {name}", f"{best.decode_tps_median / speed:.2f}", f"at the same batch{form}"


def _p99(figures: object, digits: int) -> str:
    """Return what the slowest hundredth takes at least."""
    value = figures.get("p99") if isinstance(figures, dict) else None
    return f"p99 {number(value, digits)} ms"


def _figure(value: float | None, digits: int, unit: str) -> str:
    """Return a figure with its unit, "-" where there is none."""
    return "-" if value is None else number(value, digits) + unit
