"""`bench`: the seed workload on one model, figures an expert trusts, a verdict.

For the command line:

- `BenchConfig(...)` validates its values; `parse_batch_sizes("1,8,32")` reads a sweep.
- `run_bench(options, engine_config, bench_config, report) -> BenchReport` measures. It raises a
  FlexinferError where there is nothing to show, and returns what is finished when interrupted.
- `render(report, "table" | "json" | "csv" | "md") -> str` is what goes to stdout (see FORMATS).
- `write_stats(report)` writes `stats_path`, if one was given; call it after printing, so that a
  full disk costs the file and not the figures.
- `report.verdict` is ok, regression, flagged, failed, wrong output or interrupted; exit with
  `report.exit_code`.

`decode_tps` is the decoded tokens of one round over the wall clock of that same round, the whole
call, prefill included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.errors import WriteFailed
from flexinfer.tasks.bench.baseline import Baseline, check_covered, compare, read_baseline
from flexinfer.tasks.bench.config import BenchConfig, parse_batch_sizes
from flexinfer.tasks.bench.format import FORMATS, render
from flexinfer.tasks.bench.result import BenchReport, BenchResult, Comparison
from flexinfer.tasks.bench.rows import Rig, measured_rows, prepare
from flexinfer.tasks.environment import now

__all__ = [
    "FORMATS",
    "BenchConfig",
    "BenchReport",
    "BenchResult",
    "Comparison",
    "Rig",
    "parse_batch_sizes",
    "render",
    "run_bench",
    "write_stats",
]


def run_bench(
    options: ModelOptions,
    engine_config: EngineConfig,
    bench_config: BenchConfig,
    report: Report = quiet,
    *,
    rig: Rig | None = None,
) -> BenchReport:
    """Measure every back end at every batch size; the weights are loaded once for each back end.

    In a sweep a batch size that fails becomes a row with its `error`. Raises UsageError,
    EnvironmentUnfit or NotEnoughMemory where the only row fails, WriteFailed where `stats_path`
    cannot be written later, KeyboardInterrupt where it came before a row was finished.
    """
    rig = rig or Rig()
    started_at = now()
    if bench_config.stats_path is not None:
        _check_writable(Path(bench_config.stats_path))
    baseline = read_baseline(bench_config.baseline) if bench_config.baseline else None
    rows: list[BenchResult] = []
    interrupted = False
    try:
        for row in _rows(options, engine_config, bench_config, baseline, report, rig):
            rows.append(row)
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    return BenchReport(
        config={
            "model": asdict(options),
            "engine": asdict(engine_config),
            "bench": asdict(bench_config),
        },
        environment=rig.environment(),
        started_at=started_at,
        results=tuple(rows),
        comparisons=compare(rows, baseline, bench_config.fail_below) if baseline else (),
        interrupted=interrupted,
    )


def write_stats(report: BenchReport) -> None:
    """Write the JSON document to the `stats_path` of the config, if any; raises WriteFailed."""
    path = report.config["bench"]["stats_path"]
    if path is None:
        return
    try:
        Path(path).write_text(report.to_json(), encoding="utf-8")
    except OSError as error:
        raise WriteFailed(f"--stats-path {path}: {error.strerror}") from error


def _rows(
    options: ModelOptions,
    engine_config: EngineConfig,
    config: BenchConfig,
    baseline: Baseline | None,
    report: Report,
    rig: Rig,
) -> Iterator[BenchResult]:
    """Yield the rows of every back end as they are finished."""
    for name in config.backends:
        job = prepare(name, options, engine_config, config, report, rig)
        if baseline is not None and config.baseline is not None:
            check_covered([blank.key for blank, _ in job.plans], baseline, config.baseline)
        yield from measured_rows(job, config, report, rig.clock)


def _check_writable(path: Path) -> None:
    """Raise WriteFailed before an hour of measuring where the file could not be written after."""
    if path.is_dir():
        raise WriteFailed(f"--stats-path {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise WriteFailed(f"--stats-path {path}: the folder does not exist")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise WriteFailed(f"--stats-path {path} is not writable")
