"""All that is refused before a model is loaded: by a run, and in the same words by --dry-run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo import processes
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.extras import need
from flexinfer.tasks.grpo.names import check_names, check_unheard
from flexinfer.tasks.grpo.problems.digest import digest
from flexinfer.tasks.grpo.problems.hub import HUB_SETS
from flexinfer.tasks.grpo.problems.table import as_dataset
from flexinfer.tasks.grpo.rewards.choose import choose_rewards
from flexinfer.tasks.grpo.saved.checkpoints import check_outputs, found
from flexinfer.tasks.grpo.saved.folder import check_unlocked
from flexinfer.tasks.grpo.work import Work, check_enough, work_of
from flexinfer.weights.families import check_transformers

EXTRA = "grpo"


class Ahead(NamedTuple):
    """What is known of a run before its model is.

    `data` is the digest of the problems, `last` the checkpoint to go on from.
    """

    work: Work
    data: str
    last: Path | None


def check_installed() -> None:
    """Raise EnvironmentUnfit where a package that trains is missing or too old."""
    check_transformers()
    for module in ("trl", "datasets", "accelerate"):
        need(module, "train-grpo", EXTRA)


def look_ahead(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
    notice: Callable[[str], None] = lambda line: None,
) -> Ahead:
    """Check a filled config, its problems and its output folder; nothing is written.

    Raises UsageError, EnvironmentUnfit or WriteFailed.
    """
    _check_settings(options, engine, config, rollout_options)
    work = work_of(config)
    check_enough(work.problems, config, processes.count())  # some may be too long, besides
    as_dataset(work.problems.name, work.problems.rows)  # whether a table can hold them
    data = digest(work.problems)
    return Ahead(work, data, _last(options, config, data, notice))


def plan_ahead(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
    notice: Callable[[str], None] = lambda line: None,
) -> Work | None:
    """Check as `look_ahead` does, without going to the hub: None where problems are there."""
    if config.dataset.lower() not in HUB_SETS:
        return look_ahead(options, engine, config, rollout_options, notice).work
    _check_settings(options, engine, config, rollout_options)
    if config.reward:
        choose_rewards(config.reward)
    _last(options, config, None, notice)
    return None


def _check_settings(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
) -> None:
    """Check all that needs no problems."""
    check_outputs(config)
    check_names(config)
    check_unheard(options, engine, config)
    rollout_options.check(config.rollout)


def _last(
    options: ModelOptions, config: GrpoConfig, data: str | None, notice: Callable[[str], None]
) -> Path | None:
    """Return the checkpoint to go on from; raises UsageError where the folder is in use."""
    if processes.is_first():  # it will lock the folder, perhaps before another has come here
        check_unlocked(config.output_dir)
    return found(options, config, data, notice)
