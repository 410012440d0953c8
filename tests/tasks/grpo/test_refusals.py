"""What could not be trained, or would train nothing, is told before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.names import check_unheard
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


def test_a_rollout_is_not_corrected_twice(tmp_path: Path) -> None:
    """As __init__ asks, for which vLLM would have to be there."""
    for mode in ("token_truncate", "none"):
        with parts("qwen3", config(tmp_path, is_correction=mode)) as ready:
            ready.trainer.use_vllm = True
            ready.trainer.vllm_importance_sampling_correction = False
            ready.trainer._check_correction()
            ready.trainer.vllm_importance_sampling_correction = True
            if mode == "none":
                ready.trainer._check_correction()
                continue
            with pytest.raises(UsageError, match="corrected twice"):
                ready.trainer._check_correction()


def test_a_column_that_the_rollout_fills() -> None:
    with pytest.raises(RequestError, match="'policy_version' means something to the trainer"):
        checked({"prompt": "a", "policy_version": 3})


@pytest.mark.parametrize(
    ("model", "engine", "grpo", "flag"),
    [
        ({}, {"batch_invariant": True}, {}, "--batch-invariant"),
        ({"lora_mode": "runtime"}, {}, {}, "--lora-mode"),
        ({}, {}, {"sleep": True}, "--sleep"),
        ({"load_in_4bit": True}, {}, {}, "--load-in-4bit"),
    ],
)
def test_settings_of_the_engine_that_vllm_would_not_hear(
    model: Any, engine: Any, grpo: Any, flag: str
) -> None:
    options, own = ModelOptions(model="tiny-gemma4", **model), EngineConfig(**engine)
    check_unheard(options, own, GrpoConfig(rollout="flex", **grpo))
    with pytest.raises(UsageError, match=f"{flag}.* means nothing to vllm"):
        check_unheard(options, own, GrpoConfig(rollout="vllm", **grpo))
    check_unheard(ModelOptions(model="tiny-gemma4"), EngineConfig(), GrpoConfig(rollout="vllm"))


@pytest.mark.parametrize("rollout", ["flex", "hf"])
def test_more_positions_than_the_model_has(rollout: str, tmp_path: Path) -> None:
    """What a user has set is named, not the --max-seq-length that it adds up to."""
    settings = config(tmp_path, max_completion_length=10**5, rollout=rollout)
    with (
        pytest.raises(UsageError, match="--max-completion-length 100000 are") as refused,
        parts("qwen3", settings),
    ):
        pass
    assert "--max-seq-length" not in refused.value.message
    assert str(refused.value.hint).startswith("give --max-completion-length ")


@pytest.mark.parametrize(
    "value", [10**400, float("inf"), float("nan"), -1], ids=["huge", "inf", "nan", "below 0"]
)
@pytest.mark.parametrize("name", ["warmup_steps", "learning_rate", "max_grad_norm", "beta"])
def test_a_number_that_no_float_holds_is_refused(name: str, value: float) -> None:
    """A whole number may be larger than every float: comparing it with one does not overflow."""
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"{flag} is {value}; allowed: "):
        GrpoConfig(**{name: value})
