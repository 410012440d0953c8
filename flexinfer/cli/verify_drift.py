"""`flexinfer verify-drift`: is what is rolled out the trainer's policy, and its base untouched?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flexinfer.cli.arguments.engine_options import EngineFlags
from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import MAX_NEW_TOKENS, CommonFlags, ModelFlags
from flexinfer.cli.terminal.console import Console, print_data
from flexinfer.cli.terminal.width import screen_width

CYCLES = "Cycles"


@dataclass(frozen=True, kw_only=True)
class CycleFlags:
    """What is done to the engine."""

    cycles: Annotated[
        int,
        option("--cycles", panel=CYCLES, metavar="N", help="Moves of the adapter, a refresh each."),
    ] = 10
    noise_scale: Annotated[
        float,
        option(
            "--noise-scale",
            panel=CYCLES,
            metavar="X",
            help="Standard deviation of what a move adds to every A, B and bias.",
        ),
    ] = 0.01
    n_prompts: Annotated[
        int,
        option(
            "--n-prompts",
            panel=CYCLES,
            metavar="N",
            help="Random prompts, of lengths that cross pages and windows.",
        ),
    ] = 6
    max_new_tokens: Annotated[int, MAX_NEW_TOKENS] = 16


def verify_drift(
    cycle: CycleFlags,
    model: ModelFlags,
    engine: EngineFlags,
    common: CommonFlags,
) -> int:
    """Check an engine's weights and answers against the trainer's."""
    from flexinfer.tasks.drift.run import DriftConfig, render, run_drift

    config = DriftConfig(**vars(cycle), seed=engine.seed)
    engine_config = engine.config()
    with Console(quiet=common.quiet) as console:
        options = model.options(engine.seed, console.notice)
        report = run_drift(options, engine_config, config, console.report, console.notice)
    print_data(render(report, common.as_json, screen_width()))
    return report.exit_code
