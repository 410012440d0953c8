"""What train-grpo measures: one frozen record a step, and the document around them.

Units: `_s` seconds of wall clock, `_gb` 10**9 bytes, lengths in tokens, log-probabilities natural.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from flexinfer.tasks.environment import SCHEMA_VERSION

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "policy_version": "optimizer steps before the rollout of this step: its policy",
        "gap": "|rollout - trainer| log-probability of the sampled tokens, before the update",
        "ratio": "exp(trainer - rollout) of the same tokens",
        "reward_std": "standard deviation over the completions of the step",
        "clipped_fraction": "completions that --max-completion-length ended",
        "tokens": "completion tokens of the step, tokens_per_s over generate_s alone",
        "train_s": "step_s without generate_s and refresh_s: rewards, loss, update",
        "memory_gb": "allocated on the device at the end of the step; 0 without one",
        "peak_memory_gb": "allocated on the device at most so far; 0 without one",
    }
)


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step, numbered from 1, with the rollout it learned from.

    `rewards` are the means of the single reward functions, by name; `kl` is None without a KL term.
    """

    step: int
    policy_version: int
    reward: float
    reward_std: float
    rewards: Mapping[str, float]
    loss: float
    kl: float | None
    gap_mean: float
    gap_max: float
    ratio_min: float
    ratio_mean: float
    ratio_max: float
    mean_length: float
    clipped_fraction: float
    tokens: int
    generate_s: float
    refresh_s: float
    train_s: float
    step_s: float
    tokens_per_s: float
    memory_gb: float
    peak_memory_gb: float
    grad_norm: float | None
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class GrpoReport:
    """A whole run, or what is finished of it.

    Accuracies are fractions of the `held_out` problems that are scored, None where none is;
    `adapter_path` is where the adapter was saved, None before that.
    """

    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    started_at: str
    backend: str
    model_name: str
    train_wall_s: float
    peak_memory_gb: float
    max_prompt_length: int | None
    max_completion_length: int
    num_generations: int
    max_steps: int
    steps: tuple[StepRecord, ...] = ()
    held_out: int = 0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    adapter_path: str | None = None
    notices: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def step_wall_s(self) -> list[float]:
        """Seconds of each step."""
        return [step.step_s for step in self.steps]

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [step.loss for step in self.steps]

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each step."""
        return [step.reward for step in self.steps]

    @property
    def exit_code(self) -> int:
        """0, or 130 where the run was interrupted."""
        return 130 if self.interrupted else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain containers."""
        own = asdict(self)
        head = {name: own.pop(name) for name in ("started_at", "config", "environment")}
        steps = own.pop("steps")
        return {
            "schema_version": SCHEMA_VERSION,
            "command": "train-grpo",
            **head,
            "definitions": dict(DEFINITIONS),
            **own,
            "step_wall_s": self.step_wall_s,
            "losses": self.losses,
            "rewards": self.rewards,
            "steps": steps,
        }

    def to_json(self) -> str:
        """Return the JSON document, indented; null stands for what JSON has no number for."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False, default=str) + "\n"


def finite(value: Any) -> Any:
    """Return plain containers with None for NaN and infinities: a loss may be one."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
