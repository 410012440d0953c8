"""`bench`: the seed workload on one model, figures an expert trusts, a verdict.

For the command line:

- `BenchConfig(...)` validates its values; `parse_batch_sizes("1,8,32")` reads a sweep.
- `run_bench(options, engine_config, bench_config, report, notice) -> BenchReport` measures. It
  raises a FlexinferError where there is nothing to show, and returns what is finished when
  interrupted or broken (`report.ended_by`, to be raised once the figures are out).
- `render(report, "table" | "json" | "csv" | "md") -> str` is what goes to stdout (see FORMATS).
- `write_stats(report)` writes `stats_path`, `write_page(report)` the charts of `report_file`, if
  one was given; call them after printing, so that a full disk costs the file and not the figures.
- `report.verdict` is ok, inconclusive, regression, flagged, failed, wrong output or interrupted;
  exit with `report.exit_code`.

`decode_tps` is the decoded tokens of one round over the wall clock of that same round, the whole
call, prefill included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.tasks.bench.compare.baseline import (
    Baseline,
    check_comparable,
    compare,
    read_baseline,
)
from flexinfer.tasks.bench.compare.side_by_side import agreements, labels
from flexinfer.tasks.bench.config import BenchConfig, parse_batch_sizes, parse_new_tokens
from flexinfer.tasks.bench.lanes.child import child_rows
from flexinfer.tasks.bench.lanes.lanes import Lane, lane_rows, lanes_of, whole_rows
from flexinfer.tasks.bench.lanes.weights import parse_weights
from flexinfer.tasks.bench.measure.plan import check_lengths
from flexinfer.tasks.bench.measure.progress import Once
from flexinfer.tasks.bench.measure.rig import Rig
from flexinfer.tasks.bench.measure.rows import Listener, heard
from flexinfer.tasks.bench.measure.tuning import check_tunable
from flexinfer.tasks.bench.profile.trace_path import check_trace
from flexinfer.tasks.bench.result import BenchReport, BenchResult, Comparison
from flexinfer.tasks.bench.show.format import FORMATS, render
from flexinfer.tasks.bench.show.page import write_page
from flexinfer.tasks.bench.show.stats_file import check_stats, write_stats
from flexinfer.tasks.charts.write import check_report
from flexinfer.tasks.environment import environment, now

__all__ = [
    "FORMATS",
    "BenchConfig",
    "BenchReport",
    "BenchResult",
    "Comparison",
    "Rig",
    "labels",
    "parse_batch_sizes",
    "parse_new_tokens",
    "parse_weights",
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
    debug: bool = False,
) -> BenchReport:
    """Measure every back end at every batch size and length, over weights in every form.

    Several back ends or forms of weights run one after the other, each in a fresh process (see
    lanes.child), and what fails there becomes rows with their `error`. So does vLLM alone: what it
    starts writes to stdout as it likes. Any other one alone runs in this process: in a sweep a
    batch size that fails becomes a row too, and what nobody foresaw ends the run as `ended_by`.
    `notice` hears what runs and why, before it is measured; `debug` shows the
    traceback of what becomes a row's error. Raises UsageError, EnvironmentUnfit or NotEnoughMemory
    where the only row fails, WriteFailed where `stats_path`, `report_file` or `trace_path` cannot
    be written later, and anything that came before a row was finished.
    """
    rig, started_at = rig or Rig(), now()
    _check(options, engine_config, bench_config, rig)
    lanes = lanes_of(options, engine_config, bench_config, rig, debug)
    baseline = _baseline(lanes, bench_config)
    listener = Listener(report=report, notice=Once(notice), failed=heard(debug))
    if bench_config.n_prompts is None:
        listener.notice("--n-prompts not given: as many as each batch size of the sweep holds")
    rows, where, ended_by = _measured(lanes, listener, rig)
    model, engine = asdict(options), asdict(engine_config)
    return BenchReport(
        config={"model": model, "engine": engine, "bench": asdict(bench_config)},
        environment=where,
        started_at=started_at,
        results=tuple(rows),
        agreements=agreements(rows, options.load_format),
        comparisons=compare(rows, baseline, bench_config.fail_below) if baseline else (),
        ended_by=ended_by,
    )


def _check(options: ModelOptions, engine: EngineConfig, config: BenchConfig, rig: Rig) -> None:
    """Find what would fail after loading or measuring, before it; raises as run_bench does."""
    check_lengths(engine, config)
    if config.tune:
        check_tunable(engine, config.backends)
        rig.tunable(options)
    if config.stats_path is not None:
        check_stats(config.stats_path)
    if config.report_file is not None:
        check_report(config.report_file)
    if config.profile and config.trace_path is not None:
        check_trace(config.trace_path)


def _baseline(lanes: list[Lane], config: BenchConfig) -> Baseline | None:
    """Return the earlier run, if one was given; raises UsageError where it is of another kind."""
    if config.baseline is None:
        return None
    baseline = read_baseline(config.baseline)
    check_comparable([row for lane in lanes for row in lane.blanks], baseline, config)
    return baseline


def _measured(
    lanes: list[Lane], listener: Listener, rig: Rig
) -> tuple[list[BenchResult], Mapping[str, Any], BaseException | None]:
    """Return the rows, where they ran, and what ended the run early; raises that without rows."""
    rows: list[BenchResult] = []
    where: list[Mapping[str, Any]] = []
    ended_by: BaseException | None = None
    try:
        for row in _rows(lanes, listener, rig, where.append):
            rows.append(row)
    except (Exception, KeyboardInterrupt) as error:
        if not rows:
            raise
        ended_by = error
    return rows, where[0] if where else environment(), ended_by


def _rows(
    lanes: list[Lane],
    listener: Listener,
    rig: Rig,
    where: Callable[[Mapping[str, Any]], None],
) -> Iterator[BenchResult]:
    """Yield the rows of every lane as they are finished; `where` hears of the environment."""
    if rig.apart and (len(lanes) > 1 or lanes[0].backend == "vllm"):
        for lane in lanes:
            listener.notice(f"measuring {lane.name}")
            yield from child_rows(lane, listener, where)
        return
    where(rig.environment())
    for lane in lanes:
        yield from (lane_rows if len(lanes) == 1 else whole_rows)(lane, listener, rig)
