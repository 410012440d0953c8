"""`bench`: the seed workload on one model, figures an expert trusts, a verdict.

For the command line:

- `BenchConfig(...)` validates its values; `parse_batch_sizes("1,8,32")` reads a sweep.
- `run_bench(options, engine_config, bench_config, report, notice) -> BenchReport` measures. It
  raises a FlexinferError where there is nothing to show, and returns what is finished when
  interrupted or broken (`report.ended_by`, to be raised once the figures are out).
- `render(report, "table" | "json" | "csv" | "md") -> str` is what goes to stdout (see FORMATS).
- `write_stats(report)` writes `stats_path`, `write_page(report)` the charts of `report_file`, if
  one was given; call them after printing, so that a full disk costs the file and not the figures.
- `report.verdict` is ok, regression, flagged, failed, wrong output or interrupted; exit with
  `report.exit_code`.

`decode_tps` is the decoded tokens of one round over the wall clock of that same round, the whole
call, prefill included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.tasks.bench.baseline import Baseline, check_comparable, compare, read_baseline
from flexinfer.tasks.bench.config import BenchConfig, parse_batch_sizes
from flexinfer.tasks.bench.format import FORMATS, render
from flexinfer.tasks.bench.page import write_page
from flexinfer.tasks.bench.plan import blank_rows
from flexinfer.tasks.bench.progress import Once
from flexinfer.tasks.bench.result import BenchReport, BenchResult, Comparison
from flexinfer.tasks.bench.rig import Rig
from flexinfer.tasks.bench.rows import Listener, measured_rows, prepare
from flexinfer.tasks.bench.stats_file import check_stats, write_stats
from flexinfer.tasks.bench.tuning import check_tunable
from flexinfer.tasks.charts.write import check_report
from flexinfer.tasks.environment import now
from flexinfer.tasks.threads import own_threads

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
    "write_page",
    "write_stats",
]


def run_bench(
    options: ModelOptions,
    engine_config: EngineConfig,
    bench_config: BenchConfig,
    report: Report = quiet,
    notice: Callable[[str], None] = lambda line: None,
    *,
    rig: Rig | None = None,
) -> BenchReport:
    """Measure every back end at every batch size; the weights are loaded once for each back end.

    `notice` hears what runs and why, before it is measured. In a sweep a batch size that fails
    becomes a row with its `error`; what nobody foresaw ends the run as `ended_by`. Raises
    UsageError, EnvironmentUnfit or NotEnoughMemory where the only row fails, WriteFailed where
    `stats_path` or `report_file` cannot be written later, and anything that came before a row was
    finished.
    """
    rig, started_at = rig or Rig(), now()
    if bench_config.tune:
        check_tunable(engine_config, bench_config.backends)
    if bench_config.stats_path is not None:
        check_stats(bench_config.stats_path)
    if bench_config.report_file is not None:
        check_report(bench_config.report_file)
    baseline = _baseline(options, engine_config, bench_config, rig)
    environment = rig.environment()
    listener = Listener(report=report, notice=Once(notice))
    rows: list[BenchResult] = []
    ended_by: BaseException | None = None
    try:
        for row in _rows(options, engine_config, bench_config, listener, rig):
            rows.append(row)
    except (Exception, KeyboardInterrupt) as error:
        if not rows:
            raise
        ended_by = error
    return BenchReport(
        config={
            "model": asdict(options),
            "engine": asdict(engine_config),
            "bench": asdict(bench_config),
        },
        environment=environment,
        started_at=started_at,
        results=tuple(rows),
        comparisons=compare(rows, baseline, bench_config.fail_below) if baseline else (),
        interrupted=isinstance(ended_by, KeyboardInterrupt),
        ended_by=ended_by if isinstance(ended_by, Exception) else None,
    )


def _baseline(
    options: ModelOptions, engine_config: EngineConfig, config: BenchConfig, rig: Rig
) -> Baseline | None:
    """Return the earlier run, if one was given; raises UsageError where it is of another kind."""
    if config.baseline is None:
        return None
    baseline = read_baseline(config.baseline)
    name = rig.model_name(options.model)
    planned = [
        row
        for backend in config.backends
        for row in blank_rows(backend, name, options, engine_config, config)
    ]
    check_comparable(planned, baseline, config)
    return baseline


def _rows(
    options: ModelOptions,
    engine_config: EngineConfig,
    config: BenchConfig,
    listener: Listener,
    rig: Rig,
) -> Iterator[BenchResult]:
    """Yield the rows of every back end as they are finished."""
    if config.n_prompts is None:
        listener.notice("--n-prompts not given: as many as each batch size of the sweep holds")
    for name in config.backends:
        job = prepare(name, options, engine_config, config, listener.report, rig)
        if config.tune:
            for line in rig.tune(job.checkpoint, listener.report):
                listener.notice(line)
        with own_threads(job.checkpoint.module) as threads:
            listener.notice(*threads)
            for row in measured_rows(job, config, listener, rig.clock):
                yield replace(row, notices=(*threads, *row.notices))
