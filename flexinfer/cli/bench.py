"""`flexinfer bench`: the seed workload on one model, figures and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flexinfer.cli.console import Console, print_data
from flexinfer.cli.engine_options import EngineFlags
from flexinfer.cli.failures import say_failure
from flexinfer.cli.flags import option
from flexinfer.cli.options import (
    IGNORE_EOS,
    MAX_NEW_TOKENS,
    OUTPUT,
    TEMPERATURE,
    CommonFlags,
    ModelFlags,
)
from flexinfer.cli.width import screen_width
from flexinfer.config import EngineConfig
from flexinfer.errors import UsageError

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
        str, option("--prompt-length", panel=WORKLOAD, metavar="LOW:HIGH", help="In tokens.")
    ] = "64:256"
    max_new_tokens: Annotated[int, MAX_NEW_TOKENS] = 512
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
        str, option("--format", panel=OUTPUT, metavar="table|json|csv|md", help="What stdout gets.")
    ] = "table"
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
            help="After the rounds, show where the time of a decode step goes.",
        ),
    ] = False
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
        FORMATS,
        BenchConfig,
        render,
        run_bench,
        write_page,
        write_stats,
    )

    sizes, chosen = _batch_sizes(workload, engine)
    values = vars(workload) | {"backends": tuple(workload.backends or ("flex",))}
    values |= {name: value for name, value in vars(result).items() if name != "format"}
    bench_config = BenchConfig(**values, batch_sizes=sizes, seed=engine.seed)
    form = "json" if common.as_json else result.format
    if form not in FORMATS:
        raise UsageError(f"--format is {form!r}; allowed: {', '.join(FORMATS)}")
    engine_config = engine.config(max_batch_size=sizes[0])
    with Console(quiet=common.quiet) as console:
        if chosen is not None:
            console.notice(chosen)
        options = model.options(engine.seed, console.notice)
        report = run_bench(options, engine_config, bench_config, console.report, console.notice)
    for row in report.results:
        if row.error is not None:
            say_failure(f"{row.backend} batch {row.max_batch_size}: {row.error}")
    try:
        print_data(render(report, form, screen_width()))
    finally:
        try:
            write_stats(report)
        finally:
            write_page(report)
    if report.ended_by is not None:
        raise report.ended_by
    return report.exit_code


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
