"""What bench touches outside itself; heavy imports wait until they are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexinfer.backends.base.protocol import Backend, Checkpoint
from flexinfer.backends.choose import load_checkpoint
from flexinfer.config import ModelOptions, Report
from flexinfer.tasks.bench.measure.rounds import Clock
from flexinfer.tasks.bench.measure.tuning import check_device, tune_checkpoint
from flexinfer.tasks.bench.profile.result import Profile, Subject
from flexinfer.tasks.environment import environment
from flexinfer.tasks.roofline import StepCost, bandwidth_apart, copy_bandwidth, step_cost
from flexinfer.weights.names import resolve

Profiler = Callable[[Backend, Subject], Profile]
"""What profiles a back end between two calls; raises where it cannot."""


def named(model: str) -> str:
    """Return the name under which the weights of `--model` are reported; raises UsageError."""
    return resolve(model).name


def torch_environment() -> Mapping[str, Any]:
    """Return the environment with the device that torch will run on."""
    import torch

    assert torch
    return environment()


def checkpoint_cost(checkpoint: Checkpoint) -> StepCost:
    """Return what a decode step of `checkpoint` reads, by its shapes."""
    return step_cost(*checkpoint.outline())


def profiled(backend: Backend, subject: Subject) -> Profile:
    """Profile the engine of this package."""
    from flexinfer.tasks.bench.profile.run import profile_backend

    return profile_backend(backend, subject)


@dataclass(frozen=True, kw_only=True)
class Rig:
    """All of it; a test hands in fakes.

    `apart`: several back ends, or forms of weights, run in processes of their own, and so does
    vLLM. `bandwidth_apart` measures what is in the hands of another process until then.
    """

    load: Callable[[str, ModelOptions, Report], Checkpoint] = load_checkpoint
    model_name: Callable[[str], str] = named
    environment: Callable[[], Mapping[str, Any]] = torch_environment
    cost: Callable[[Checkpoint], StepCost | None] = checkpoint_cost
    bandwidth: Callable[[str], float | None] = copy_bandwidth
    bandwidth_apart: Callable[[], float | None] = bandwidth_apart
    profiler: Profiler = profiled
    tunable: Callable[[ModelOptions], None] = check_device
    tune: Callable[[Checkpoint, Report], Sequence[str]] = tune_checkpoint
    clock: Clock = time.perf_counter
    apart: bool = True
