"""`train-grpo`: GRPO with a back end of this package as its rollout.

For the command line:

- `GrpoConfig(...)` validates its values, `RolloutOptions(...)` those of hf and hf-cb.
- `run_grpo(options, engine_config, config, rollout_options, ...) -> GrpoReport`.
- `render(report, as_json) -> str` is what goes to stdout; exit with `report.exit_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.errors import FlexinferError
from flexinfer.tasks.environment import environment, now
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.processes import is_first
from flexinfer.tasks.grpo.training.hush import hushed

__all__ = ["GrpoConfig", "RolloutOptions", "render", "run_grpo"]

if TYPE_CHECKING:
    from flexinfer.tasks.grpo.records.log import Log
    from flexinfer.tasks.grpo.records.record import GrpoReport, StepRecord
    from flexinfer.tasks.grpo.setup import Parts


@hushed()
def run_grpo(
    options: ModelOptions,
    engine_config: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
    report: Report = quiet,
    notice: Callable[[str], None] = lambda line: None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
    *,
    widen: bool = False,
) -> GrpoReport:
    """Train, and write the adapter, the statistics and the rollouts as they come.

    `notice` hears what runs and why, `on_step` the record of each optimizer step. With `widen` the
    batch of `engine_config` was nobody's choice and may grow for held-out problems. Raises
    UsageError, EnvironmentUnfit or NotEnoughMemory where it cannot be done, and KeyboardInterrupt
    once a checkpoint of the last whole step is saved.
    """
    from flexinfer.tasks.grpo.ahead import look_ahead

    if not is_first():
        report, notice, on_step = quiet, lambda line: None, lambda record: None
    started_at, config = now(), config.filled(options.model)
    ahead = look_ahead(options, engine_config, config, rollout_options, notice)
    from flexinfer.tasks.grpo.records.log import Log
    from flexinfer.tasks.grpo.saved.adapter_fits import check_adapter
    from flexinfer.tasks.grpo.start import begin_files, set_up

    with ExitStack() as stack:
        parts = set_up(options, engine_config, config, rollout_options, ahead, report, stack, widen)
        if ahead.last is not None:
            check_adapter(parts.trainer.model, ahead.last)
        for line in parts.notices:
            notice(line)
        head = _head(options, rollout_options, parts, started_at)
        head = _going_on(head, config, ahead.done, notice)
        rollouts = begin_files(options, config, ahead, stack)
        log = Log(head, rollouts, config.stats_file, on_step, notice)
        _train_and_tell(parts, config, log, ahead.last, notice)
    return log.report


def _train_and_tell(
    parts: Parts, config: GrpoConfig, log: Log, last: Path | None, notice: Callable[[str], None]
) -> None:
    """Train, and write the page however that ends."""
    from flexinfer.tasks.grpo.records.report import write_page
    from flexinfer.tasks.grpo.training.interrupts import undisturbed

    page = config.report if is_first() else None
    try:
        _train(parts, config, log, last, notice)
    except BaseException as error:
        _tell_despite(error, log, page, notice)
        raise
    if page is not None:
        with undisturbed():
            write_page(page, log.report)


def _tell_despite(
    error: BaseException, log: Log, page: Path | None, notice: Callable[[str], None]
) -> None:
    """Write the figures of a run that ends early: what ended it is told, what fails here noted."""
    from flexinfer.tasks.grpo.records.report import write_page
    from flexinfer.tasks.grpo.training.interrupts import undisturbed

    with undisturbed():
        try:
            if isinstance(error, KeyboardInterrupt):
                log.update(interrupted=True)
            if page is not None:
                write_page(page, log.report)
        except FlexinferError as failed:
            notice(f"warning: {failed.message}")


def render(report: GrpoReport, as_json: bool) -> str:
    """Return what goes to stdout, ending in a newline."""
    from flexinfer.tasks.grpo.records.summary import as_text

    return report.to_json() if as_json else as_text(report)


def _train(
    parts: Parts, config: GrpoConfig, log: Log, last: Path | None, notice: Callable[[str], None]
) -> None:
    """Score the base, train, save the policy and score it; no step where `last` took them all."""
    from flexinfer.tasks.grpo.evaluate import scored
    from flexinfer.tasks.grpo.records.recorder import Recorder
    from flexinfer.tasks.grpo.saved.checkpoints import is_over, save
    from flexinfer.tasks.grpo.training.heap import settled_heap
    from flexinfer.tasks.grpo.training.interrupts import StepBoundary

    trainer, boundary = parts.trainer, StepBoundary(notice)
    trainer.add_callback(Recorder(trainer, parts.rollout, log))
    trainer.add_callback(boundary)
    parts.rollout.notice = log.hear
    before = scored(parts, config, "before", notice)
    log.update(accuracy_before=log.report.accuracy_before if before is None else before)
    if last is not None and is_over(config, last):
        notice(f"{last.name} has taken every step: its adapter is saved")
        trainer.take_weights(last)
    else:
        with boundary.saving(trainer), settled_heap():
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
    log.update(adapter_path=str(save(trainer, config.output_dir, parts.loaded.name)))
    try:
        log.update(accuracy_after=scored(parts, config, "after", notice))
    except KeyboardInterrupt as error:
        raise type(error)("the adapter is saved; --resume scores it") from error


def _head(
    options: ModelOptions, rollout_options: RolloutOptions, parts: Parts, started_at: str
) -> GrpoReport:
    """Return the report of a run that has taken no step."""
    from flexinfer.tasks.grpo.records.record import GrpoReport

    config = parts.config
    settings: dict[str, Any] = {
        "model": asdict(options),
        "engine": asdict(parts.engine),
        "grpo": asdict(config),
        "rollout": asdict(rollout_options),
    }
    made: dict[str, Any] = {name: vars(config)[name] for name in _SHOWN}
    return GrpoReport(
        config=settings,
        environment=environment(),
        started_at=started_at,
        backend=config.rollout,
        model_name=parts.loaded.name,
        train_wall_s=0.0,
        peak_memory_gb=0.0,
        notices=parts.notices,
        held_out=len(parts.problems.held_out),
        **made,
    )


def _going_on(
    head: GrpoReport, config: GrpoConfig, done: int, notice: Callable[[str], None]
) -> GrpoReport:
    """Return the report with the figures of the `done` steps that were taken before."""
    from flexinfer.tasks.grpo.records.stats_file import read_earlier

    if not done:
        return head
    steps, before = read_earlier(config.stats_file, done)
    if not steps:
        notice(f"no figures of steps 1 to {done}: {config.stats_file} is not there")
    took = sum(step.step_s for step in steps)
    return replace(head, steps=steps, train_wall_s=took, accuracy_before=before)


_SHOWN = ("max_prompt_length", "max_completion_length", "num_generations", "max_steps")
"""Settings that the report shows at its top."""
