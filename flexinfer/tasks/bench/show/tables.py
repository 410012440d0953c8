"""The tables of a bench report's page: every figure of a row, the comparisons, kernels."""

from __future__ import annotations

from collections.abc import Callable

from flexinfer.tasks.bench.compare.side_by_side import labels
from flexinfer.tasks.bench.profile.table import HEAD, KERNEL_HEAD, kernel_cells, op_cells
from flexinfer.tasks.bench.result import BenchReport, BenchResult
from flexinfer.tasks.charts.chart import Table
from flexinfer.tasks.columns import number

Cell = Callable[[BenchResult], str]


def tables(report: BenchReport) -> list[Table]:
    """Return the tables that there is something for."""
    return [*_figures(report), *_checks(report), *_changes(report), *_profiles(report)]


def _of(name: str, percentile: str, digits: int) -> Cell:
    """Return a cell of one percentile."""
    return lambda row: number((vars(row)[name] or {}).get(percentile), digits)


FIGURES: tuple[tuple[str, Cell], ...] = (
    ("tok/s", lambda row: number(row.decode_tps_median, 1)),
    ("best", lambda row: number(row.decode_tps_best, 1)),
    ("spread %", lambda row: number(row.wall_spread_pct, 1)),
    ("wall s", lambda row: number(row.median_wall_s, 3)),
    ("prefill/s", lambda row: number(row.prefill_tps, 0)),
    ("decode tok/s", lambda row: number(row.decode_only_tps, 1)),
    ("roofline %", lambda row: number(row.roofline_pct, 1)),
    ("TTFT p50 ms", _of("ttft_ms", "p50", 1)),
    ("p99", _of("ttft_ms", "p99", 1)),
    ("step p50 ms", _of("step_ms", "p50", 2)),
    ("p90", _of("step_ms", "p90", 2)),
    ("p99", _of("step_ms", "p99", 2)),
)
COSTS: tuple[tuple[str, Cell], ...] = (
    ("peak GB", lambda row: number(row.peak_memory_gb, 2)),
    ("reserved GB", lambda row: number(row.peak_reserved_gb, 2)),
    ("load s", lambda row: number(row.load_s, 2)),
    ("compile s", lambda row: number(row.compile_s, 2)),
    ("capture s", lambda row: number(row.capture_s, 2)),
    ("open s", lambda row: number(row.open_s, 2)),
    ("warm-up s", lambda row: number(row.warm_up_s, 2)),
    ("refresh ms", lambda row: number(row.refresh_s and 1e3 * row.refresh_s, 1)),
)
COUNTERS: tuple[tuple[str, Cell], ...] = (
    ("graph replays", lambda row: _count(row.graph_replays)),
    ("eager steps", lambda row: _count(row.eager_steps)),
    ("preempted", lambda row: _count(row.preemptions)),
    ("rounds", lambda row: str(len(row.wall_times_s))),
    ("flagged", lambda row: str(len(row.flagged_rounds))),
    ("tokens a round", lambda row: ", ".join(map(str, dict.fromkeys(row.round_tokens))) or "-"),
)


def _count(value: int | None) -> str:
    """Return a counter."""
    return "-" if value is None else str(value)


def _small(value: float | None) -> str:
    """Return a figure of which only the size matters."""
    return "-" if value is None else f"{value:.2g}"


def _figures(report: BenchReport) -> list[Table]:
    """Return every figure of the rows that have any, and why the others have none."""
    named = list(zip(labels(report.results), report.results, strict=True))
    done = [(label, row) for label, row in named if row.error is None]
    failed = [(label, row.error or "") for label, row in named if row.error is not None]
    parts = (
        ("Figures", FIGURES),
        ("Memory, and what comes once", COSTS),
        ("Rounds and counters", COUNTERS),
    )
    found = [
        Table(
            title=title,
            rows=[
                ["", *(name for name, _ in columns)],
                *([label, *(cell(row) for _, cell in columns)] for label, row in done),
            ],
            words=1,
        )
        for title, columns in parts
        if done
    ]
    if failed:
        found.append(Table(title="Failed", rows=[["", "why"], *map(list, failed)], words=2))
    return found


def _checks(report: BenchReport) -> list[Table]:
    """Return what became of the output gate, and of the back ends against each other."""
    gated = [
        [label, f"{row.gate.agreed} of {row.gate.checked}", _small(row.gate.mean_logprob_gap),
         "wrong" if row.gate.problem else "passed"]
        for label, row in zip(labels(report.results), report.results, strict=True)
        if row.gate is not None
    ]  # fmt: skip
    head = ["", "tokens as the reference", "mean log-probability gap (nats)", "verdict"]
    found = [Table(title="Output gate", rows=[head, *gated], words=1)] if gated else []
    if report.agreements:
        rows = [
            [one.label, one.against, f"{one.agreed} of {one.tokens}", one.summary.split(": ", 1)[1]]
            for one in report.agreements
        ]
        head = ["", "against", "same tokens", "in words"]
        found.append(Table(title="Back ends against each other", rows=[head, *rows], words=4))
    return found


def _changes(report: BenchReport) -> list[Table]:
    """Return the comparison with the baseline."""
    rows = [
        [one.label, number(one.decode_tps_baseline, 1), number(one.decode_tps_now, 1),
         number(one.change_pct, 1), number(one.noise_pct, 1),
         "regression" if one.regression else "inconclusive" if one.inconclusive
         else one.note or "ok"]
        for one in report.comparisons
    ]  # fmt: skip
    head = ["", "baseline tok/s", "now", "change %", "noise %", "verdict"]
    return [Table(title="Against the baseline", rows=[head, *rows], words=1)] if rows else []


def _profiles(report: BenchReport) -> list[Table]:
    """Return where a decode step goes, operation by operation and kernel by kernel."""
    found = []
    for label, row in zip(labels(report.results), report.results, strict=True):
        if row.profile is None:
            continue
        ops = [[*HEAD], *([*op_cells(op)] for op in row.profile.ops)]
        found.append(Table(title=f"A decode step of {label}", rows=ops, words=2))
        if row.profile.kernels:
            kernels = [[*KERNEL_HEAD], *([*kernel_cells(k)] for k in row.profile.kernels)]
            found.append(Table(title=f"Top kernels of {label}", rows=kernels, words=2))
    return found
