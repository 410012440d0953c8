"""Full collections of a run leave alone what was there before it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo.run import GrpoConfig, RolloutOptions, run_grpo
from flexinfer.tasks.grpo.training.heap import settled_heap
from tests.support.grpo_runs import few_sums


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@few_sums()
def test_steps_run_over_a_frozen_heap_and_give_it_back(tmp_path: Path) -> None:
    frozen: list[int] = []
    config = GrpoConfig(
        max_steps=2, num_generations=2, per_device_batch_size=4, lora_rank=4,
        output_dir=tmp_path / "run",
    )  # fmt: skip
    run_grpo(
        ModelOptions(model="tiny-gemma4", device="cpu"),
        EngineConfig(),
        config,
        RolloutOptions(),
        on_step=lambda record: frozen.append(gc.get_freeze_count()),
    )
    assert min(frozen) > 100_000
    assert gc.get_freeze_count() == 0


def test_it_is_given_back_after_an_error() -> None:
    with pytest.raises(KeyError), settled_heap():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_froze_stays_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with settled_heap():
        pass
    assert gc.get_freeze_count() > before / 2 > 0, "but for what has been freed meanwhile"
