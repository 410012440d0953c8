"""Parts of a memory plan: what must be there at once, and what to lower where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flexinfer.config import ModelOptions
from flexinfer.tasks.grpo.config import GrpoConfig

Phase = Literal["always", "rollout", "training"]


@dataclass(frozen=True)
class Part:
    """A share of memory: its name, when it is there, its size."""

    name: str
    phase: Phase
    n_bytes: int


def total(parts: Sequence[Part], phase: Phase) -> int:
    """Return the bytes of a phase's own parts."""
    return sum(part.n_bytes for part in parts if part.phase == phase)


def needed(parts: Sequence[Part], kv: int) -> int:
    """Return the most that is there at once, with `kv` bytes of cache in the rollout."""
    passing = max(total(parts, "rollout") + kv, total(parts, "training"))
    return total(parts, "always") + passing


def advice(
    parts: Sequence[Part], options: ModelOptions, config: GrpoConfig, kv: int
) -> tuple[str, ...]:
    """Return what to lower, the most effective first."""
    passing = total(parts, "training")
    largest = max(parts, key=lambda part: part.n_bytes)
    hints = [_of_training(config)] if passing > total(parts, "rollout") + kv else []
    if largest.name == "weights" or not hints:
        hints.append(_of_weights(options))
    merged = any("merged" in part.name for part in parts)
    if merged:
        hints.append("--lora-mode runtime needs no merged copy of the weights")
    return tuple(hints)


def _of_training(config: GrpoConfig) -> str:
    """Say how a forward pass gets smaller."""
    if not config.gradient_checkpointing:
        return "switch gradient checkpointing on"
    if (config.per_device_batch_size or 1) > 1:
        return "lower --per-device-batch-size and raise --gradient-accumulation-steps as much"
    return "lower --max-completion-length"


def _of_weights(options: ModelOptions) -> str:
    """Say how weights get smaller."""
    return "a smaller --model" if options.load_in_4bit else "--load-in-4bit, or a smaller --model"
