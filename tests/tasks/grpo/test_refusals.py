"""What could not be trained, or would train nothing, is told before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.grpo.problems.row import checked
from tests.support.grpo import PROMPTS, config, parts


def test_a_step_that_wants_more_prompts_than_there_are(tmp_path: Path) -> None:
    """TRL would leave the incomplete batch out, take no step, and say that all is well."""
    settings = config(tmp_path, per_device_batch_size=4 * (len(PROMPTS) + 1))
    with (
        pytest.raises(UsageError, match="4 prompts, while a step takes 5"),
        parts("qwen3", settings),
    ):
        pass


def test_as_many_prompts_as_a_step_wants_are_enough(tmp_path: Path) -> None:
    settings = config(tmp_path, per_device_batch_size=4 * len(PROMPTS), max_steps=1)
    with parts("qwen3", settings) as ready:
        ready.trainer.train()
        assert ready.trainer.state.global_step == 1


def test_a_loss_that_weights_would_not_correct(tmp_path: Path) -> None:
    settings = config(tmp_path, loss_type="vespo")
    with pytest.raises(UsageError, match="do not correct the loss vespo"), parts("qwen3", settings):
        pass
    with parts("qwen3", config(tmp_path, loss_type="vespo", is_correction="none")):
        pass


def test_a_column_that_the_rollout_fills() -> None:
    with pytest.raises(RequestError, match="'policy_version' means something to the trainer"):
        checked({"prompt": "a", "policy_version": 3})
