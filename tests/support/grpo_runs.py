"""Short runs of train-grpo over the embedded model, and what they leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from safetensors.torch import load_file

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.problems import arithmetic
from flexinfer.tasks.grpo.records.record import GrpoReport
from flexinfer.tasks.grpo.run import RolloutOptions, run_grpo

MODEL = ModelOptions(model="tiny-gemma4", device="cpu", seed=3)


@contextmanager
def few_sums() -> Iterator[None]:
    """Within it `arithmetic` has sums for some steps: encoding all takes longer than the steps."""
    with patch.object(arithmetic, "ROWS", 256):
        yield


@few_sums()
def run(folder: Path, **values: Any) -> GrpoReport:
    """Train tiny-gemma4 for a few steps."""
    short: dict[str, Any] = {
        "max_steps": 4,
        "num_generations": 4,
        "per_device_batch_size": 8,
        "lora_rank": 4,
        "save_steps": 2,
        "warmup_steps": 1,
        "learning_rate": 3e-3,
        "lr_scheduler": "constant_with_warmup",
        "output_dir": folder,
    }
    heard = {name: values.pop(name) for name in ("notice", "on_step") if name in values}
    return run_grpo(
        MODEL,
        EngineConfig(max_batch_size=8, seed=3),
        GrpoConfig(**short | values, stats_path=folder.parent / f"{folder.name}.json"),
        RolloutOptions(),
        **heard,
    )


def rollouts(folder: Path) -> list[dict[str, Any]]:
    """Return what rollouts.jsonl holds."""
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def adapter(folder: Path) -> dict[str, Any]:
    """Return the tensors of the saved adapter."""
    return load_file(folder / "adapter_model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    """Fail unless two runs left the same adapter and the same completions."""
    tensors, others = adapter(one), adapter(other)
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.equal(others[name]), name
    assert rollouts(one) == rollouts(other)
