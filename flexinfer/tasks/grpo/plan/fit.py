"""Parts of a memory plan: what must be there at once, and what to lower where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flexinfer.config import ModelOptions
from flexinfer.tasks.grpo.config import GrpoConfig

SLEEP = "--sleep gives the KV cache back while training, a smaller --kv-memory takes less"
MIB = 2**20
KEPT = ("flex", "vllm")
"""Back ends with an engine that lives as long as the run."""
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


def kv_phase(config: GrpoConfig) -> Phase:
    """Return when the cache is there: an engine that does not sleep keeps it."""
    return "always" if config.rollout in KEPT and not config.sleep else "rollout"


def needed(parts: Sequence[Part], cache: Part) -> int:
    """Return the most that is there at once."""
    every = (*parts, cache)
    passing = max(total(every, "rollout"), total(every, "training"))
    return total(every, "always") + passing


def room_for(parts: Sequence[Part], phase: Phase, n_bytes: float) -> float:
    """Return what of `n_bytes` a cache of this phase may take beside all the parts."""
    if phase == "always":
        return n_bytes - needed(parts, Part("KV cache", phase, 0))
    return n_bytes - total(parts, "always") - total(parts, phase)


def fitting_kv(parts: Sequence[Part], free: float, least: int) -> tuple[str, ...]:
    """Say which --kv-memory leaves room for training, where that holds a sequence (`least`)."""
    room = int(room_for(parts, "always", free)) // MIB * MIB
    return (f"--kv-memory {room // MIB}MiB would fit",) if room >= least else ()


def advice(
    parts: Sequence[Part], options: ModelOptions, config: GrpoConfig, cache: Part
) -> tuple[str, ...]:
    """Return what to lower, the most effective first."""
    every = (*parts, cache)
    largest = max(parts, key=lambda part: part.n_bytes)
    trains = total(every, "training") > total(every, "rollout")
    hints = [_of_training(config)] if trains else []
    if cache.phase == "always":
        smaller = cache.n_bytes < total(parts, "training")
        cure = SLEEP if config.rollout == "flex" else "a smaller --kv-memory takes less"
        hints = [*hints, cure] if smaller else [cure, *hints]
    if largest.name == "weights" or not hints:
        hints.append(_of_weights(options, config))
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


def _of_weights(options: ModelOptions, config: GrpoConfig) -> str:
    """Say how weights get smaller."""
    last = options.load_in_4bit or config.rollout == "vllm"
    return "a smaller --model" if last else "--load-in-4bit, or a smaller --model"
