"""In every step, what is rolled out is the policy: checked against the trainer itself."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from flexinfer.errors import FlexinferError, StaleWeights
from flexinfer.tasks.grpo.training.correction import GAP, RATIO
from tests.support.grpo import config, logged, parts
from tests.support.tiny import FAMILIES


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_rollouts_are_of_the_trainers_policy(
    family: str, checkpointing: bool, tmp_path: Path
) -> None:
    settings = config(tmp_path, gradient_checkpointing=checkpointing, max_steps=3)
    with parts(family, settings) as ready:
        ready.trainer.train()
    means = logged(ready.trainer, f"{GAP}/mean")
    assert len(means) == 3
    assert max(means) <= 1e-4
    assert min(logged(ready.trainer, f"{RATIO}/min")) > 1 - 1e-3
    assert max(logged(ready.trainer, f"{RATIO}/max")) < 1 + 1e-3


def test_the_gap_of_a_policy_that_is_left_behind_is_seen(tmp_path: Path) -> None:
    settings = config(tmp_path, learning_rate=3e-2, max_steps=3)
    with parts("qwen3", settings) as ready:
        rollout = ready.rollout
        assert rollout is not None
        refresh, calls = rollout.backend.refresh, []
        engine = rollout.backend.engine

        def once() -> None:
            calls.append(1)
            if len(calls) == 1:
                refresh()
            else:
                engine.policy_version += 1  # says that it is new, and is not

        object.__setattr__(rollout.backend, "refresh", once)
        ready.trainer.train()
    means = logged(ready.trainer, f"{GAP}/mean")
    assert means[0] <= 1e-4
    assert means[2] > 1e-3


def test_a_back_end_that_does_not_follow_is_an_error(tmp_path: Path) -> None:
    with parts("qwen3", config(tmp_path)) as ready:
        assert ready.rollout is not None
        object.__setattr__(ready.rollout.backend, "refresh", lambda: None)
        with pytest.raises(StaleWeights, match="still rolls out version 0"):
            ready.trainer.train()


def test_a_rollout_of_another_step_is_an_error(tmp_path: Path) -> None:
    with parts("qwen3", config(tmp_path)) as ready:
        rollout = ready.rollout
        assert rollout is not None
        rollout._follow = lambda step: setattr(rollout, "step", 7)
        with pytest.raises(StaleWeights, match="step 0 got a rollout of step 7"):
            ready.trainer.train()


@pytest.mark.parametrize("lost", [None, float("nan")])
def test_a_missing_log_probability_is_an_error(lost: float | None, tmp_path: Path) -> None:
    with parts("qwen3", config(tmp_path)) as ready:
        rollout = ready.rollout
        assert rollout is not None

        def losing(prompts: Any, trainer: Any) -> dict[str, Any]:
            made = rollout(prompts, trainer)
            if lost is None:
                return made | {"logprobs": None}
            made["logprobs"][0][0] = lost
            return made

        ready.trainer.rollout_func = losing
        with pytest.raises(FlexinferError, match="without its log-probabilities"):
            ready.trainer.train()


def shifted(rollout: Any) -> Any:
    """Return a rollout whose log-probabilities are off, as a sampler's of another precision."""

    def off(prompts: Any, trainer: Any) -> Mapping[str, Any]:
        made = rollout(prompts, trainer)
        noise = torch.Generator().manual_seed(3)
        for row in made["logprobs"]:
            shift = torch.randn(len(row), generator=noise) * 0.5
            row[:] = [value + float(by) for value, by in zip(row, shift, strict=True)]
        return made

    return off


@pytest.mark.parametrize(
    ("mode", "loss_type"),
    [
        *product(("token_truncate", "sequence_mask"), ("dapo", "grpo", "dr_grpo", "bnpo")),
        *(("token_mask", "dapo"), ("sequence_truncate", "dapo")),
    ],
)
def test_the_correction_is_trls_own(mode: str, loss_type: str, tmp_path: Path) -> None:
    """Weights know nothing of losses, which take them as [B, T] or [B, 1]: each takes both."""
    values: dict[str, Any] = {"is_correction": mode, "is_cap": 1.4, "loss_type": loss_type}
    settings = config(tmp_path, max_steps=1, **values)
    losses = []
    for own in (True, False):
        with parts("qwen3", settings) as ready:
            trainer = ready.trainer
            trainer.rollout_func = shifted(ready.rollout)
            if not own:  # TRL corrects what it believes vLLM to have made
                trainer.use_vllm = True
                trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
                trainer._last_loaded_step = -1
                trainer.vllm_importance_sampling_correction = True
                trainer.vllm_importance_sampling_mode = mode
                trainer.vllm_importance_sampling_clip_max = settings.is_cap
                trainer.vllm_importance_sampling_clip_min = None
                trainer._correct = lambda inputs, logps: None
            trainer.train()
            losses.append(trainer.state.log_history[0])
    assert losses[0]["grad_norm"] > 1e-3
    assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-5, abs=1e-7)
    assert losses[0]["grad_norm"] == pytest.approx(losses[1]["grad_norm"], rel=1e-5)


def test_weights_change_the_loss(tmp_path: Path) -> None:
    norms = []
    for mode in ("none", "token_mask"):
        settings = config(tmp_path, max_steps=1, is_correction=mode, is_cap=1.1)
        with parts("qwen3", settings) as ready:
            ready.trainer.rollout_func = shifted(ready.rollout)
            ready.trainer.train()
            norms.append(ready.trainer.state.log_history[0]["grad_norm"])
    assert abs(norms[0] - norms[1]) > 1e-3


def test_trls_loss_reads_advantages_after_its_forward_pass(tmp_path: Path) -> None:
    """Pins what the trainer relies on: it can set them once the log-probabilities are there."""
    with parts("qwen3", config(tmp_path, max_steps=1)) as ready:
        trainer, seen = ready.trainer, list[str]()

        class Spying(dict[str, Any]):
            def __getitem__(self, key: str) -> Any:
                seen.append(key)
                return super().__getitem__(key)

        def forward(*args: Any, **kwargs: Any) -> Any:
            seen.append("forward")
            return GRPOTrainer._get_per_token_logps_and_entropies(trainer, *args, **kwargs)

        def loss(model: Any, inputs: Any) -> Any:
            return GRPOTrainer._compute_loss(trainer, model, Spying(inputs))

        trainer._get_per_token_logps_and_entropies = forward
        trainer._compute_loss = loss
        trainer.train()
    assert seen.index("forward") < seen.index("advantages")
