"""One process or several (accelerate launch, torchrun): which this is, and what all made together.

The first one speaks and writes; every one rolls out and trains its own share of a step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from flexinfer.engine.requests.seeds import mix
from flexinfer.errors import EnvironmentUnfit, UsageError, one_line

if TYPE_CHECKING:
    from flexinfer.config import Device
    from flexinfer.engine.requests.outputs import Completion
    from flexinfer.tasks.grpo.rollout import Times

T = TypeVar("T")
_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def count() -> int:
    """Return how many processes a launcher started for this run."""
    return _of_launcher("WORLD_SIZE", 1)


def rank() -> int:
    """Return which of them this is, from 0."""
    return _of_launcher("RANK", 0)


def sharing(device: str) -> int:
    """Return how many of them share the memory of this one's device: on a CPU all of a host."""
    return _of_launcher("LOCAL_WORLD_SIZE", count()) if device == "cpu" else 1


def is_first() -> bool:
    """Tell whether this process is the one that speaks and writes."""
    return rank() == 0


@contextmanager
def alone() -> Iterator[None]:
    """Hide a launcher's variables: who only plans does not meet the other processes."""
    kept = {name: os.environ.pop(name) for name in _LAUNCHER if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _of_launcher(name: str, default: int) -> int:
    """Return what a launcher has set; raises UsageError where that is no number."""
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise UsageError(f"{name}={value} is no number", hint="unset it, or use a launcher")
    return int(value)


def own_seed(seed: int, process: int) -> int:
    """Return the seed of a process's rollouts: they differ, and the first's is the run's."""
    return mix(seed, process) if process else seed


@contextmanager
def joined(device: Device) -> Iterator[None]:
    """Meet the other processes, and make this one's own device the current one, before loading.

    Raises EnvironmentUnfit where the launcher's variables do not say where they are.
    """
    if count() == 1:
        yield
        return
    import torch
    from accelerate import PartialState

    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if on_cpu:  # accelerate's own name is cpu:0, to which transformers 5.17 loads no optimizer
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    try:
        PartialState(cpu=on_cpu)
    except ValueError as error:
        raise EnvironmentUnfit(
            f"cannot meet the other {count() - 1} of {count()} processes: {one_line(error)}",
            hint="start all of them with accelerate launch or torchrun, or unset WORLD_SIZE",
        ) from error
    yield
    PartialState().destroy_process_group()


def all_samples(own: Sequence[Completion]) -> list[Completion]:
    """Return the samples of all processes, in the order in which TRL gathers them."""
    return _gathered(own)


def all_times(own: Times) -> Times:
    """Return the tokens of all processes, and the seconds of the slowest."""
    every = _gathered([own])
    return type(own)(
        max(times.refresh_s for times in every),
        max(times.generate_s for times in every),
        sum(times.tokens for times in every),
    )


def _gathered(own: Sequence[T]) -> list[T]:
    """Return what all processes have, one after the other."""
    from accelerate.utils import gather_object

    every: list[T] = gather_object([*own])
    return every
