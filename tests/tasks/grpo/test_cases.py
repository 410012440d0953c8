"""Faults that other projects met in the field, as runs that would show them here."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import RequestOutput
from flexinfer.tasks.grpo.records.log import completions
from flexinfer.tasks.grpo.saved.checkpoints import save
from flexinfer.tasks.grpo.training.correction import GAP
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.digest import digest
from tests.support.engines import complete, loaded
from tests.support.grpo import PROMPTS, config, logged, parts, shorter
from tests.support.rollouts import fresh
from tests.support.untouched import describe


@dataclass
class Played:
    """A back end whose completions are given: all else is the real one's."""

    backend: Any
    generate: Any
    name: str = "played"

    @property
    def policy_version(self) -> int:
        return int(self.backend.policy_version)

    @property
    def notices(self) -> tuple[str, ...]:
        said: tuple[str, ...] = self.backend.notices
        return said

    def refresh(self) -> None:
        self.backend.refresh()


def described(module: Any) -> dict[str, Any]:
    """Describe a module over whose forward TRL has put a function of its own."""
    forward = vars(module).pop("forward")
    try:
        return describe(module)
    finally:
        module.forward = forward


def test_a_policy_that_learns_is_the_one_that_rolls_out(tmp_path: Path) -> None:
    """With the memory given back between rollouts: weights must still follow (trl#5312)."""
    reward = (f"{shorter.__module__}:{shorter.__name__}",)
    settings = config(
        tmp_path, max_steps=10, learning_rate=3e-2, sleep=True, reward=reward, temperature=0.7
    )
    with parts("qwen3", settings) as ready:
        trainer, rollout = ready.trainer, ready.rollout
        assert rollout is not None
        versions, said, held = [], [], []
        step = trainer.training_step

        def noting(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            versions.append(rollout.version)
            held.append(rollout.backend.engine.machinery.programs.cache.n_bytes)
            lines = completions(1, rollout.version, trainer._logs, rollout.samples)
            said.append({line.prompt: line.completion for line in lines})
            return loss

        trainer.training_step = noting
        trainer.train()
    assert versions == list(range(10))
    assert held == [0] * 10
    assert max(logged(trainer, f"{GAP}/mean")) <= 1e-4
    assert len({str(texts) for texts in said}) == 10


def test_the_saved_adapter_on_the_original_base_is_the_policy(tmp_path: Path) -> None:
    """Nothing is merged into the base, in memory or in the folder (miles#1087)."""
    settings = config(tmp_path, max_steps=5, learning_rate=2e-2)
    prompts = ((5, 6, 7), (9, 10, 11, 12))
    original = digest(fresh("qwen3"))
    with parts("qwen3", settings) as ready:
        ready.trainer.train()
        folder = save(ready.trainer, settings.output_dir, "tiny")
        assert ready.rollout is not None
        ready.rollout.backend.refresh()
        engine: Any = ready.rollout.backend.engine
        live = complete(engine, prompts, max_new_tokens=8)
        assert digest(ready.loaded.module) == original
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118  # it is no mapping
    assert not list(folder.glob("model*.safetensors"))
    base, choice = loaded(fresh("qwen3")), AdapterChoice(str(folder))
    limits = EngineConfig(max_seq_length=64, attention="dense")
    with Engine(replace(base, adapter=choice), limits) as engine:
        assert complete(engine, prompts, max_new_tokens=8) == live
    with Engine(base, limits) as engine:
        assert complete(engine, prompts, max_new_tokens=8) != live


def test_the_trainer_goes_on_as_if_nothing_had_been_generated(tmp_path: Path) -> None:
    """Modes, flags and generators are what they were (transformers#45943)."""
    with parts("gemma4", config(tmp_path, max_steps=1)) as ready:
        trainer, rollout = ready.trainer, ready.rollout
        assert rollout is not None
        trainer.train()
        trainer.model.train()
        module: Any = ready.loaded.module
        before = described(module)
        rollout([PROMPTS[0]] * 4, trainer)
        assert described(module) == before


def test_rounds_leave_no_memory_behind(tmp_path: Path) -> None:
    settings = config(tmp_path, max_steps=12, learning_rate=1e-3)
    with parts("qwen3", settings) as ready:
        trainer, counts = ready.trainer, []
        step = trainer.training_step

        def noting(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            gc.collect()
            counts.append(sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor))
            return loss

        trainer.training_step = noting
        trainer.train()
    assert max(counts[2:6]) == max(counts[-4:]), counts


def kept(generate: Any, samples: list[list[RequestOutput]]) -> Any:
    """Return `generate`, which adds what it returns to `samples`."""

    def played(requests: Any) -> Any:
        samples.append(generate(requests))
        return samples[-1]

    return played


def replayed(samples: list[list[RequestOutput]]) -> Any:
    """Return what gives `samples` one after the other, whatever it is asked."""
    made = iter(samples)
    return lambda requests: next(made)


@pytest.mark.parametrize("other", ["hf", "hf-cb"])
def test_back_ends_differ_in_nothing_but_the_rollout(other: str, tmp_path: Path) -> None:
    """The completions of flex, replayed through another's trainer, train the same."""
    samples: list[list[RequestOutput]] = []
    histories = []
    for name in ("flex", other):
        folder = tmp_path / name
        folder.mkdir()
        with parts("qwen3", config(folder, rollout=name, max_steps=5, learning_rate=1e-2)) as ready:
            backend: Any = ready.rollout.backend
            played = kept(backend.generate, samples) if name == "flex" else replayed(samples)
            ready.trainer.rollout_func.backend = Played(backend, played)
            ready.trainer.train()
            histories.append(ready.trainer.state.log_history[:5])
            advantages = list(ready.trainer._logs["advantages"])
    assert any(abs(value) > 0.1 for value in advantages)
    for one, two in zip(*histories, strict=True):
        assert one["grad_norm"] > 1e-3
        for name in ("loss", "reward", "reward_std", "grad_norm"):
            assert one[name] == pytest.approx(two[name], abs=1e-4), name
