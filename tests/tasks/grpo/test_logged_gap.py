"""The gap in the trainer's own log: what whoever owns it sees, in TRL's manner."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from flexinfer.tasks.grpo.training.correction import GAP, RATIO, gap_between
from tests.support.grpo import config, logged, parts
from tests.support.grpo_runs import run

NAMES = {
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "sampling/token_importance_ratio/min",
    "sampling/token_importance_ratio/mean",
    "sampling/token_importance_ratio/max",
}


def further_each_time(rollout: Any) -> Any:
    """Return a rollout whose log-probabilities are off by 0.1 the first time, then 0.2, ..."""
    calls: list[int] = []

    def off(prompts: Any, trainer: Any) -> dict[str, Any]:
        calls.append(1)
        made: dict[str, Any] = rollout(prompts, trainer)
        for row in made["logprobs"]:
            row[:] = [value + 0.1 * len(calls) for value in row]
        return made

    return off


@pytest.mark.parametrize("mode", ["token_truncate", "none"])
def test_every_step_logs_its_own(mode: str, tmp_path: Path) -> None:
    """Corrected or not, and as it was before the cap."""
    settings = config(tmp_path, is_correction=mode, is_cap=0.5, gradient_accumulation_steps=2)
    with parts("qwen3", settings) as ready:
        trainer = ready.trainer
        trainer.rollout_func = further_each_time(ready.rollout)
        trainer.train()
    *steps, summary = trainer.state.log_history
    assert len(steps) == 2
    assert NAMES.isdisjoint(summary)
    for by, log in zip((0.1, 0.2), steps, strict=True):
        assert {name for name in log if name.startswith("sampling/")} == NAMES
        assert [log[f"{GAP}/{which}"] for which in ("mean", "max")] == pytest.approx([by] * 2, 1e-3)
        ratios = [log[f"{RATIO}/{which}"] for which in ("min", "mean", "max")]
        assert ratios == pytest.approx([math.exp(-by)] * 3, 1e-3)


def test_an_entry_of_two_steps_is_over_the_tokens_of_both(tmp_path: Path) -> None:
    """Extremes stay extremes, where TRL would take the mean of both."""
    with parts("qwen3", config(tmp_path)) as ready:
        trainer = ready.trainer
        trainer.args.logging_steps = 2
        trainer.rollout_func = further_each_time(ready.rollout)
        trainer.train()
    assert logged(trainer, f"{GAP}/max") == pytest.approx([0.2], 1e-3)
    assert logged(trainer, f"{RATIO}/min") == pytest.approx([math.exp(-0.2)], 1e-3)
    assert logged(trainer, f"{RATIO}/max") == pytest.approx([math.exp(-0.1)], 1e-3)
    assert 0.11 < logged(trainer, f"{GAP}/mean")[0] < 0.19


def test_evaluation_has_its_own(tmp_path: Path) -> None:
    """An evaluation between two steps of one entry is none of it."""
    with parts("qwen3", config(tmp_path)) as ready:
        trainer = ready.trainer
        trainer.args.logging_steps = 2
        trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 1
        trainer.eval_dataset = trainer.train_dataset.select(range(2))
        trainer.rollout_func = further_each_time(ready.rollout)  # step, evaluation, step, ...
        trainer.train()
    assert logged(trainer, f"eval_{GAP}/max") == pytest.approx([0.2, 0.4], 1e-3)
    assert logged(trainer, f"{GAP}/max") == pytest.approx([0.3], 1e-3)
    assert logged(trainer, f"{RATIO}/max") == pytest.approx([math.exp(-0.1)], 1e-3)


def test_it_is_of_all_processes(tmp_path: Path) -> None:
    far = gap_between(torch.zeros(1, 1), torch.full((1, 1), 5.0), torch.ones(1, 1))
    with parts("qwen3", config(tmp_path, max_steps=1)) as ready:
        trainer = ready.trainer
        gather = trainer.accelerator.gather

        def of_two(own: Any) -> Any:
            """Add the other process's row to a gap's."""
            return torch.cat((own, torch.cat(far)[None])) if own.shape == (1, 6) else gather(own)

        trainer.accelerator.gather = of_two
        trainer.train()
    assert logged(trainer, f"{GAP}/max") == [5.0]


def test_a_step_without_a_token_logs_none(tmp_path: Path) -> None:
    with parts("qwen3", config(tmp_path, max_steps=1)) as ready:
        trainer = ready.trainer

        def masked(inputs: Any) -> Any:
            scored = GRPOTrainer._generate_and_score_completions(trainer, inputs)
            return scored | {"completion_mask": torch.zeros_like(scored["completion_mask"])}

        trainer._generate_and_score_completions = masked
        trainer.train()
    assert NAMES.isdisjoint(trainer.state.log_history[0])


def test_the_record_of_a_step_is_what_was_logged(tmp_path: Path) -> None:
    steps = run(tmp_path / "run", max_steps=2).steps
    state = json.loads((tmp_path / "run/checkpoint-2/trainer_state.json").read_text())
    assert len(steps) == len(state["log_history"]) == 2
    for step, log in zip(steps, state["log_history"], strict=True):
        assert (step.gap_mean, step.gap_max) == (log[f"{GAP}/mean"], log[f"{GAP}/max"])
        ratios = (step.ratio_min, step.ratio_mean, step.ratio_max)
        assert ratios == tuple(log[f"{RATIO}/{which}"] for which in ("min", "mean", "max"))
        assert step.ratio_min < step.ratio_mean < step.ratio_max
