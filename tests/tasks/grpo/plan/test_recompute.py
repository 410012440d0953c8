"""Gradient checkpointing where nobody chose: off where all activations fit with room to spare."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan import beside
from flexinfer.tasks.grpo.plan.recompute import SPARE
from flexinfer.tasks.grpo.plan.run import Plan, plan_run
from flexinfer.tasks.grpo.run import RolloutOptions, run_grpo
from flexinfer.tasks.grpo.training.trainer import OnPolicyGRPOTrainer
from tests.support.grpo_runs import few_sums

LARGE = ModelOptions(model="qwen3-4b", dtype="bfloat16", device="cpu")
GIB = 2**30


def plan(available: int, **values: Any) -> Plan:
    config = GrpoConfig(dataset="gsm8k", max_prompt_length=512, **values)
    return plan_run(LARGE, EngineConfig(), config, available=available)


def on(made: Plan) -> bool:
    """What the plan settled on."""
    found: bool = made.config["grpo"]["gradient_checkpointing"]
    return found


def said(made: Plan) -> list[str]:
    return [line for line in made.notices if line.startswith("gradient checkpointing")]


def test_it_is_off_from_where_a_fourth_is_left() -> None:
    kept = plan(80 * GIB, gradient_checkpointing=False).wanted
    enough = int(kept / SPARE) + 1
    assert not on(plan(enough))
    assert on(plan(enough - 2))
    assert plan(enough).wanted == kept
    assert plan(enough - 2).wanted < kept


def test_a_choice_stays_and_is_not_told() -> None:
    for chosen in (True, False):
        for available in (8 * GIB, 800 * GIB):
            made = plan(available, gradient_checkpointing=chosen)
            assert on(made) is chosen
            assert said(made) == []


def test_what_was_settled_is_told_with_its_reason() -> None:
    (off,), (low,) = said(plan(800 * GIB)), said(plan(8 * GIB))
    assert off.startswith("gradient checkpointing: off (with activations kept ")
    assert off.endswith(" are needed of 800.0 GiB)")
    assert low.startswith("gradient checkpointing: on (with activations kept ")


def test_beside_vllm_a_second_copy_of_the_weights_counts() -> None:
    held = {part.name: part.n_bytes for part in plan(800 * GIB, rollout="vllm").parts}
    assert held["vllm's copy of the weights"] == held["weights"] > GIB
    assert not on(plan(800 * GIB, rollout="vllm"))


@few_sums()
def test_a_run_does_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on from a checkpoint where another amount of memory is free, to the same bits."""
    folder = tmp_path / "model"  # under another name, or its recipe would choose
    copytree(str(files("flexinfer.assets.tiny_gemma4")), folder, ignore=ignore_patterns("*.py"))
    model = ModelOptions(model=str(folder), device="cpu")
    trained: list[bool] = []
    step = OnPolicyGRPOTrainer.training_step

    def watched(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append(trainer.model.is_gradient_checkpointing)
        return step(trainer, *args, **kwargs)

    monkeypatch.setattr(OnPolicyGRPOTrainer, "training_step", watched)

    def run(folder: str, free: int, steps: int = 2, **more: Any) -> Any:
        monkeypatch.setattr(beside, "available_bytes", lambda device: free)
        config = GrpoConfig(
            max_steps=steps, num_generations=4, per_device_batch_size=8, lora_rank=4, eval_size=0,
            gradient_accumulation_steps=1, max_completion_length=8, learning_rate=3e-3,
            warmup_steps=0, lr_scheduler="constant", output_dir=tmp_path / folder, **more,
        )  # fmt: skip
        heard: list[str] = []
        engine = EngineConfig(max_batch_size=8)
        report = run_grpo(model, engine, config, RolloutOptions(), notice=heard.append)
        assert sum(line.startswith("gradient checkpointing") for line in heard) == 1
        return report

    whole = run("whole", 64 * GIB)
    assert trained == [False, False]
    assert whole.config["grpo"]["gradient_checkpointing"] is False
    assert run("cut", 64 * GIB, steps=1).losses == whole.losses[:1]
    resumed = run("cut", 0, resume=True)
    assert trained == [False, False, False, True]
    assert resumed.config["grpo"]["gradient_checkpointing"] is True
    assert resumed.losses == whole.losses
    assert any(whole.losses)
    one, other = (load_file(tmp_path / n / "adapter_model.safetensors") for n in ("cut", "whole"))
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())
