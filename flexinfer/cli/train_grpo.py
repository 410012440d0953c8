"""`flexinfer train-grpo`: GRPO with the engine as its rollout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.cli.arguments.engine_options import EngineFlags
from flexinfer.cli.arguments.grpo_options import (
    BatchFlags,
    DataFlags,
    HfFlags,
    OptimizerFlags,
    RolloutFlags,
)
from flexinfer.cli.arguments.grpo_output_options import PlanFlags, RunFlags
from flexinfer.cli.arguments.options import CommonFlags, ModelFlags
from flexinfer.cli.terminal.console import Console, print_data, stdout_for_data
from flexinfer.cli.terminal.grpo_progress import GrpoProgress
from flexinfer.cli.terminal.width import screen_width
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.training.hush import hushed

if TYPE_CHECKING:
    from flexinfer.tasks.grpo.config import GrpoConfig
    from flexinfer.tasks.grpo.run import RolloutOptions

DEFAULT_MODEL = "tiny-gemma4"
MOST_AT_ONCE = 256
"""Completions that are rolled out at a time where --max-batch-size is not given.

Where a step has fewer, the batch may grow for held-out problems (tasks.grpo.plan.scoring).
"""


def train_grpo(
    data: DataFlags,
    batch: BatchFlags,
    optimizer: OptimizerFlags,
    rollout: RolloutFlags,
    hf: HfFlags,
    run: RunFlags,
    plan: PlanFlags,
    model: ModelFlags,
    engine: EngineFlags,
    common: CommonFlags,
) -> int:
    """Train an adapter by GRPO on rollouts of its own weights."""
    # read when torch starts: threads that spin while they wait make a tiny model's training ten
    # times slower as soon as one core has other work
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from flexinfer.tasks.grpo.processes import is_first
    from flexinfer.tasks.grpo.recipes import told
    from flexinfer.tasks.grpo.run import RolloutOptions, render, run_grpo

    options, hf_options = _options(model, engine.seed), RolloutOptions(**vars(hf))
    given = _config(data, batch, optimizer, rollout, run, engine.seed)
    taken, config = told(options.model, given.dataset, vars(given)), given.filled(options.model)
    at_once, widen = min(config.completions_per_step, MOST_AT_ONCE), not engine.max_batch_size
    engine_config = engine.config(at_once if widen else None)
    if plan.dry_run:
        return _dry_run(options, engine_config, config, hf_options, common, widen, taken)
    first = is_first()
    with (
        stdout_for_data(),  # a reward may print what it likes
        GrpoProgress(quiet=common.quiet or not first, max_steps=config.max_steps or 0) as progress,
    ):
        if model.model is None:
            progress.notice(f"--model not given: {DEFAULT_MODEL}, which comes with this package")
        for line in taken:
            progress.notice(line)
        report = run_grpo(
            options,
            engine_config,
            config,
            hf_options,
            progress.report,
            progress.notice,
            progress.add,
            widen=widen,
        )
    if first:
        print_data(render(report, common.as_json))
    return report.exit_code


@hushed()
def _dry_run(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
    common: CommonFlags,
    widen: bool,
    taken: Sequence[str],
) -> int:
    """Show what a run would do and need; what it refuses before it loads is refused here, too.

    `taken` says which defaults are not the usual ones.
    """
    from flexinfer.tasks.grpo.ahead import plan_ahead
    from flexinfer.tasks.grpo.processes import count, is_first

    said = [*taken]
    with stdout_for_data():  # a reward's module may print, too
        work = plan_ahead(options, engine, config, rollout_options, said.append)
    from flexinfer.tasks.grpo.plan.run import plan_run, render
    from flexinfer.tasks.grpo.plan.scoring import held_out_of

    problems = None if work is None else work.problems
    said.extend(() if problems is None else problems.notices)
    planned = plan_run(
        options,
        engine,
        config,
        processes=count(),
        held_out=held_out_of(config, problems, said.append),
        widen=widen,
        rollout_options=rollout_options,
        problems=problems,
    )
    planned = replace(planned, notices=(*planned.notices, *said))
    if is_first():
        with Console(quiet=common.quiet) as console:
            for line in planned.notices:
                console.notice(line)
        print_data(render(planned, common.as_json, screen_width()))
    return planned.exit_code


def _options(model: ModelFlags, seed: int) -> ModelOptions:
    """Return the checked model options; raises UsageError."""
    if model.adapter is not None:
        raise UsageError(
            "train-grpo begins with a fresh adapter and takes no --adapter",
            hint="--resume goes on with a run",
        )
    named = replace(model, model=model.model or DEFAULT_MODEL)
    return named.options(seed, lambda line: None)


def _config(
    data: DataFlags,
    batch: BatchFlags,
    optimizer: OptimizerFlags,
    rollout: RolloutFlags,
    run: RunFlags,
    seed: int,
) -> GrpoConfig:
    """Return the checked config; raises UsageError."""
    from flexinfer.tasks.grpo.run import GrpoConfig

    groups = (data, batch, optimizer, rollout, run)
    values = {name: value for group in groups for name, value in vars(group).items()}
    for name in ("output_dir", "report", "stats_path"):
        values[name] = _path("--" + name.replace("_", "-"), values[name])
    values["reward"] = tuple(data.reward or ())
    return GrpoConfig(**values, seed=seed)


def _path(flag: str, given: str | None) -> Path | None:
    """Return the path of an option, ~ being home; raises UsageError for an empty one (`.`)."""
    if given is not None and not given.strip():
        raise UsageError(f"{flag} is empty", hint="name one, or leave the option out")
    return None if given is None else Path(given).expanduser()
