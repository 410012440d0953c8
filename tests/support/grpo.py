"""GRPO runs over tiny models: raw prompts, and a reward that tells completions apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions, quiet
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.setup import Parts, assemble
from flexinfer.tasks.grpo.work import work_of
from tests.support.engines import loaded
from tests.support.rollouts import fresh

PROMPTS = ("abc|", "dd", "e|a|b|c|d|e|a|b|c", "cab")
OPTIONS = ModelOptions(model="tiny", device="cpu", chat_template="none")


def varied(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """Reward a completion by its ids, so that those of a prompt differ."""
    return [sum(ids) % 11 / 10 for ids in completion_ids]


def config(folder: Path, **values: Any) -> GrpoConfig:
    """Return the filled config of a short run into `folder`."""
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    short: dict[str, Any] = {
        "dataset": str(data),
        "reward": (f"{__name__}:varied",),
        "output_dir": folder / "run",
        "max_steps": 2,
        "num_generations": 4,
        "per_device_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "lora_rank": 4,
        "gradient_checkpointing": True,  # with --kv-memory: a plan needs a model by name
    }
    return GrpoConfig(**short | values).filled("tiny")


@contextmanager
def parts(
    family: str, settings: GrpoConfig, *, dtype: torch.dtype = torch.float32, **engine: Any
) -> Iterator[Parts]:
    """Assemble a run over a fresh tiny model of a family."""
    work = work_of(settings)
    engine_config = (
        EngineConfig(**{"attention": "dense", "kv_memory": 2**26} | engine)
        if settings.rollout == "flex"
        else EngineConfig()
    )
    with ExitStack() as stack:
        yield assemble(
            loaded(fresh(family).to(dtype)),
            work,
            OPTIONS,
            engine_config,
            settings,
            RolloutOptions(),
            quiet,
            stack,
        )


def logged(trainer: Any, name: str) -> list[float]:
    """Return what a trainer has logged under a name, a number an entry."""
    return [log[name] for log in trainer.state.log_history if name in log]


def shorter(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """Reward a completion for being short."""
    return [-float(len(set(ids))) for ids in completion_ids]
