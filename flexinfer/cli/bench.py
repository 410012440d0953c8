"""`flexinfer bench`: the seed workload on one model, figures and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from flexinfer.cli.arguments.engine_options import EngineFlags
from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import (
    IGNORE_EOS,
    OUTPUT,
    SAMPLING,
    TEMPERATURE,
    CommonFlags,
    ModelFlags,
)
from flexinfer.cli.terminal.bench_output import put_out
from flexinfer.cli.terminal.console import Console
from flexinfer.cli.terminal.failures import say_failure
from flexinfer.config import EngineConfig
from flexinfer.errors import UsageError

if TYPE_CHECKING:
    from flexinfer.tasks.bench.result import BenchReport

WORKLOAD = "Workload"


@dataclass(frozen=True, kw_only=True)
class WorkloadFlags:
    """What is measured."""

    backends: Annotated[
        list[str] | None,
        option(
            "--backend",
            panel=WORKLOAD,
            metavar="flex|hf|hf-cb|vllm",
            help="Repeatable: side by side (default: flex).",
        ),
    ] = None
    n_prompts: Annotated[
        int | None,
        option(
            "--n-prompts",
            panel=WORKLOAD,
            metavar="N",
            help="Prompts a round (default: 64; of a list of batch sizes, as many as each).",
        ),
    ] = None
    n_samples: Annotated[
        int,
        option("--n-samples", panel=WORKLOAD, metavar="N", help="Samples of each prompt."),
    ] = 1
    n_rounds: Annotated[
        int,
        option("--n-rounds", panel=WORKLOAD, metavar="N", help="Timed rounds, after a warm-up."),
    ] = 5
    prompt_length: Annotated[
        str,
        option(
            "--prompt-length",
            panel=WORKLOAD,
            metavar="LOW:HIGH",
            help="In tokens; 64:256,1024 sweeps.",
        ),
    ] = "64:256"
    max_new_tokens: Annotated[
        str,
        option(
            "--max-new-tokens",
            panel=SAMPLING,
            metavar="SIZE",
            help="Tokens to generate; 128,512 sweeps.",
        ),
    ] = "512"
    weights: Annotated[
        str | None,
        option(
            "--weights",
            panel=WORKLOAD,
            metavar="FORMS",
            help="Sweep: of plain,merged,runtime,4bit,4bit+merged,4bit+runtime, with commas.",
        ),
    ] = None
    temperature: Annotated[float, TEMPERATURE] = 1.0
    ignore_eos: Annotated[bool, IGNORE_EOS] = True
    gate: Annotated[
        bool,
        option(
            "--gate/--no-gate",
            panel=WORKLOAD,
            help="Check the output against the Hugging Face module before measuring.",
        ),
    ] = True
    tune: Annotated[
        bool,
        option(
            "--tune",
            panel=WORKLOAD,
            help="First tune the own kernels to this model and device, and keep the outcome.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Where the figures go, and what they are held against."""

    format: Annotated[
        str | None,
        option(
            "--format",
            panel=OUTPUT,
            metavar="table|json|csv|md",
            help="What stdout gets (default: table).",
        ),
    ] = None
    stats_path: Annotated[
        str | None,
        option("--stats-path", panel=OUTPUT, metavar="FILE", help="Write the JSON document."),
    ] = None
    report_file: Annotated[
        str | None,
        option("--report", panel=OUTPUT, metavar="FILE", help="Charts, as .html or .png."),
    ] = None
    profile: Annotated[
        bool,
        option(
            "--profile",
            panel=OUTPUT,
            help="After the rounds, show where the time of a decode step goes, kernel by kernel.",
        ),
    ] = False
    trace_path: Annotated[
        str | None,
        option(
            "--trace-path",
            panel=OUTPUT,
            metavar="FILE",
            help="The trace of --profile (default: flexinfer-trace.json.gz).",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        option("--baseline", panel=OUTPUT, metavar="FILE", help="What --stats-path once wrote."),
    ] = None
    fail_below: Annotated[
        float | None,
        option("--fail-below", panel=OUTPUT, metavar="PCT", help="Exit 1 on a loss beyond this."),
    ] = None


def bench(
    workload: WorkloadFlags,
    result: ReportFlags,
    model: ModelFlags,
    engine: EngineFlags,
    common: CommonFlags,
) -> int:
    """Measure decoding on synthetic prompts, and compare."""
    from flexinfer.tasks.bench.run import (
        BenchConfig,
        parse_new_tokens,
        parse_weights,
        run_bench,
    )

    sizes, chosen = _batch_sizes(workload, engine)
    values = vars(workload) | {"backends": tuple(workload.backends or ("flex",))}
    values |= {name: value for name, value in vars(result).items() if name != "format"}
    news = parse_new_tokens(workload.max_new_tokens)
    values |= {"max_new_tokens": news[0], "new_tokens": news if len(news) > 1 else ()}
    values |= {"weights": parse_weights(workload.weights), "trace_path": _trace_path(result)}
    bench_config = BenchConfig(**values, batch_sizes=sizes, seed=engine.seed)
    form = _form(result, common)
    engine_config = engine.config(max_batch_size=sizes[0])
    with Console(quiet=common.quiet) as console:
        if chosen is not None:
            console.notice(chosen)
        options = model.options(engine.seed, console.notice)
        report = run_bench(
            options, engine_config, bench_config, console.report, console.notice, debug=common.debug
        )
    _say_failed(report, form)
    put_out(report, form)
    return report.exit_code


def _say_failed(report: BenchReport, form: str) -> None:
    """Say which rows failed, and why where stdout does not say it in words."""
    from flexinfer.tasks.bench.run import labels

    named = zip(labels(report.results), report.results, strict=True)
    failed = [(label, row.error) for label, row in named if row.error is not None]
    if form not in ("table", "md"):
        for label, why in failed:
            say_failure(f"{label}: {why}")
    elif failed:
        of = f"{len(failed)} of {len(report.results)} rows failed"
        say_failure(f"{of}: {', '.join(label for label, _ in failed)}")


def _form(result: ReportFlags, common: CommonFlags) -> str:
    """Return what stdout gets; raises UsageError for what there is not, and for two at once."""
    from flexinfer.tasks.bench.run import FORMATS

    form = result.format or ("json" if common.as_json else "table")
    if form not in FORMATS:
        raise UsageError(f"--format is {form!r}; allowed: {', '.join(FORMATS)}")
    if common.as_json and form != "json":
        raise UsageError(f"--json and --format {form} exclude each other", hint="give one of them")
    return form


def _trace_path(result: ReportFlags) -> str | None:
    """Return where the trace goes, None where there is none; raises UsageError, WriteFailed."""
    from flexinfer.tasks.bench.profile.trace_path import default_trace

    if result.trace_path is not None and not result.profile:
        raise UsageError("--trace-path has no trace to take", hint="give --profile too")
    return (result.trace_path or default_trace()) if result.profile else None


def _batch_sizes(
    workload: WorkloadFlags, engine: EngineFlags
) -> tuple[tuple[int, ...], str | None]:
    """Return the sizes to measure at, and a notice where one was chosen; raises UsageError."""
    from flexinfer.tasks.bench.run import BenchConfig, parse_batch_sizes

    if engine.max_batch_size is not None:
        return parse_batch_sizes(engine.max_batch_size), None
    config = BenchConfig(n_prompts=workload.n_prompts, n_samples=workload.n_samples)
    sequences, size = config.sequences, config.own_batch_size
    if size == EngineConfig.max_batch_size:
        return (size,), None
    most = f" ({size} at most)" if size < sequences else ""
    return (size,), f"--max-batch-size not given: {size}, for {sequences} sequences{most}"
