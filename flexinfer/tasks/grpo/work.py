"""What a run trains on and what judges it; whether that is enough for a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.problems.choose import choose_problems
from flexinfer.tasks.grpo.problems.problem_set import Problems
from flexinfer.tasks.grpo.rewards.choose import check_answers, choose_rewards
from flexinfer.tasks.grpo.rewards.sample import RewardFunc


class Work(NamedTuple):
    """What is trained on, and what judges it."""

    problems: Problems
    rewards: Sequence[RewardFunc]


def work_of(config: GrpoConfig) -> Work:
    """Return the problems of a config and their rewards.

    They do not depend on the number of steps, which a resumed run may raise. Raises UsageError or
    EnvironmentUnfit, before a model is loaded.
    """
    problems = choose_problems(config.dataset, seed=config.seed)
    rewards = choose_rewards(config.reward or problems.rewards)
    check_answers(rewards, problems)
    return Work(problems, rewards)


def check_enough(problems: Problems, config: GrpoConfig, n_processes: int = 1) -> None:
    """Raise UsageError where a step wants more prompts than there are: TRL would take none."""
    assert config.num_generations is not None
    wanted = config.completions_per_step * n_processes // config.num_generations
    if len(problems.rows) < wanted:
        raise UsageError(
            f"--dataset {problems.name}: {len(problems.rows)} prompts, while a step takes {wanted}",
            hint="lower --per-device-batch-size or --gradient-accumulation-steps, "
            "or raise --num-generations",
        )
