"""Training on a device: on policy in bf16, with graphs, asleep in between, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.config import EngineConfig, ModelOptions
from tests.support.cuda import LIMITS, wide_on_cuda
from tests.support.engines import complete, make_engine
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

pytestmark = pytest.mark.gpu
BF16_GAP = 0.05
"""Mean |rollout - trainer| in nats: tiny-gemma4's in bf16 is 0.007 by verify-drift."""


@pytest.mark.parametrize("attention", ["triton", "flex"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_sleeps_without_the_memory_and_wakes_to_the_same_answers(
    family: str, attention: str
) -> None:
    prompts = prompts_of(3, 20, 33)
    with make_engine(wide_on_cuda(family), attention=attention, **LIMITS) as engine:
        first = complete(engine, prompts, max_new_tokens=12)
        replays = engine.stats.graph_replays
        awake, cache = torch.cuda.memory_allocated(), engine.machinery.programs.cache.n_bytes
        engine.sleep()
        assert awake - torch.cuda.memory_allocated() >= cache > 0
        held = torch.full((1 << 26,), 7, device="cuda", dtype=torch.uint8)  # where the cache lay
        assert complete(engine, prompts, max_new_tokens=12) == first
        assert engine.stats.graph_replays > replays
        assert bool((held == 7).all())


@pytest.mark.parametrize("sleep", [False, True])
@pytest.mark.parametrize("mode", ["merged", "runtime"])
def test_every_step_is_on_policy(mode: Any, sleep: bool, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from flexinfer.tasks.grpo.run import GrpoConfig, RolloutOptions, run_grpo

    config = GrpoConfig(
        max_steps=6,
        per_device_batch_size=32,
        sleep=sleep,
        learning_rate=3e-3,
        output_dir=tmp_path / "run",
    )
    options = ModelOptions(model="tiny-gemma4", device="cuda", lora_mode=mode)
    report = run_grpo(options, EngineConfig(max_batch_size=32), config, RolloutOptions())
    assert [step.policy_version for step in report.steps] == list(range(6))
    assert max(step.gap_mean for step in report.steps) <= BF16_GAP
    assert report.adapter_path is not None


def test_steps_leave_no_memory_behind(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from flexinfer.tasks.grpo.run import GrpoConfig, RolloutOptions, run_grpo

    held: list[int] = []
    config = GrpoConfig(max_steps=40, per_device_batch_size=32, output_dir=tmp_path / "run")
    run_grpo(
        ModelOptions(model="tiny-gemma4", device="cuda"),
        EngineConfig(max_batch_size=32),
        config,
        RolloutOptions(),
        on_step=lambda record: held.append(torch.cuda.memory_allocated()),
    )
    assert abs(held[-1] - held[2]) <= 1 << 20
