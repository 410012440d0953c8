"""All that is refused before a model is loaded: by a run, and in the same words by --dry-run.

What needs no library is looked at first: torch, transformers and TRL take seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo import processes
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.extras import check_there, need
from flexinfer.tasks.grpo.names import check_names, check_own_names, check_unheard
from flexinfer.tasks.grpo.positions import check_any_room
from flexinfer.tasks.grpo.problems.digest import digest
from flexinfer.tasks.grpo.problems.hub import HUB_SETS
from flexinfer.tasks.grpo.problems.table import as_dataset
from flexinfer.tasks.grpo.rewards.choose import choose_rewards
from flexinfer.tasks.grpo.saved.checkpoints import found
from flexinfer.tasks.grpo.saved.folder import check_unlocked
from flexinfer.tasks.grpo.saved.outputs import check_outputs
from flexinfer.tasks.grpo.saved.whole import step_of
from flexinfer.tasks.grpo.work import Work, check_enough, work_of
from flexinfer.weights.families import check_transformers
from flexinfer.weights.names import resolve

WANTED_BY, EXTRA = "train-grpo", "grpo"
TRAINS, TRAINER = ("trl", "datasets", "accelerate"), "trl.trainer.grpo_trainer"
"""Packages, and what is imported of the first: it imports vLLM too, where that is installed."""


class Ahead(NamedTuple):
    """What is known of a run before its model is.

    `data` is the digest of the problems, `last` the checkpoint to go on from.
    """

    work: Work
    data: str
    last: Path | None

    @property
    def done(self) -> int:
        """The optimizer steps that were taken before."""
        return 0 if self.last is None else step_of(self.last)


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
    if config.dataset.lower() in HUB_SETS:  # fetching takes longer than importing
        _check_libraries(config)
    work = work_of(config)
    check_enough(work.problems, config, processes.count())  # some may be too long, besides
    data = digest(work.problems)
    last = _last(options, config, data, notice)
    _check_libraries(config)
    as_dataset(work.problems.name, work.problems.rows)  # whether a table can hold them
    return Ahead(work, data, last)


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
    _check_libraries(config)
    return None


def _check_settings(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
) -> None:
    """Check all that needs neither problems nor libraries, but that these are there."""
    check_transformers()
    for module in TRAINS:
        check_there(module, WANTED_BY, EXTRA)
    resolve(options.model)
    check_outputs(config)
    check_own_names(config)
    check_unheard(options, engine, config)
    rollout_options.check(config.rollout)
    assert config.max_completion_length is not None
    check_any_room(config.max_completion_length, engine.max_seq_length)


def _check_libraries(config: GrpoConfig) -> None:
    """Check the names that transformers knows, then that what trains can be imported."""
    check_names(config)
    for module in (*TRAINS, TRAINER):
        need(module, WANTED_BY, EXTRA)


def _last(
    options: ModelOptions, config: GrpoConfig, data: str | None, notice: Callable[[str], None]
) -> Path | None:
    """Return the checkpoint to go on from; raises UsageError where the folder is in use."""
    if processes.is_first():  # it will lock the folder, perhaps before another has come here
        check_unlocked(config.output_dir)
    return found(options, config, data, notice)
