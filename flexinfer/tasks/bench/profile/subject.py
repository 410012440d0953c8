"""What is profiled, and the way in for bench, which loads no torch for it before it must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexinfer.backends.protocol import Backend
from flexinfer.engine.outputs import Request
from flexinfer.tasks.bench.profile.result import Profile
from flexinfer.tasks.roofline import StepCost


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The requests of a round, the median wall clock of the rounds, and the parts of the floor.

    Every request asks for two new tokens at least. `bandwidth` is in bytes a second.
    """

    requests: Sequence[Request]
    wall_s: float | None = None
    cost: StepCost | None = None
    bandwidth: float | None = None


Profiler = Callable[[Backend, Subject], Profile]
"""What profiles a back end between two calls; raises where it cannot."""


def profiled(backend: Backend, subject: Subject) -> Profile:
    """Profile the engine of this package."""
    from flexinfer.tasks.bench.profile.run import profile_backend

    return profile_backend(backend, subject)
