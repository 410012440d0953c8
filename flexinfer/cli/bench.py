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
        int, option("--n-prompts", panel=WORKLOAD, metavar="N", help="Prompts a round.")
    ] = 64
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
        str | None, option("--report", panel=OUTPUT, metavar="FILE", help=".html or .png.")
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
        FORMATS,
        BenchConfig,
        parse_batch_sizes,
        render,
        run_bench,
        write_stats,
    )

    sizes = parse_batch_sizes(engine.max_batch_size)
    values = vars(workload) | {"backends": tuple(workload.backends or ("flex",))}
    values |= {name: value for name, value in vars(result).items() if name != "format"}
    bench_config = BenchConfig(**values, batch_sizes=sizes, seed=engine.seed)
    form = "json" if common.as_json else result.format
    if form not in FORMATS:
        raise UsageError(f"--format is {form!r}; allowed: {', '.join(FORMATS)}")
    engine_config = engine.config(max_batch_size=sizes[0])
    with Console(quiet=common.quiet) as console:
        options = model.options(engine.seed, console.notice)
        report = run_bench(options, engine_config, bench_config, console.report)
        for line in dict.fromkeys(line for row in report.results for line in row.notices):
            console.notice(line)
    for row in report.results:
        if row.error is not None:
            say_failure(f"{row.backend} batch {row.max_batch_size}: {row.error}")
    print_data(render(report, form))
    write_stats(report)
    return report.exit_code
