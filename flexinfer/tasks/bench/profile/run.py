"""`bench --profile`: after the rounds, where the time of a decode step and of a call goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from flexinfer.backends.flex import FlexBackend
from flexinfer.backends.protocol import Backend
from flexinfer.tasks.bench.profile.call import call_figures, traced_call
from flexinfer.tasks.bench.profile.figures import Floor, kernels_per_layer, op_rows, over_floor
from flexinfer.tasks.bench.profile.result import Profile, StepFigures
from flexinfer.tasks.bench.profile.standing import Standing, stand
from flexinfer.tasks.bench.profile.step import Timed, host_timed, player, step_us
from flexinfer.tasks.bench.profile.subject import Subject
from flexinfer.tasks.bench.profile.traced import traced

LEAST_OF_TRACE = 0.8
"""Of the kernels of captured steps; copies among a step's kernels are not counted in a call."""
HOST = "timed by the host's clock around each operation: there is no CUDA device"


def profile_backend(backend: Backend, subject: Subject) -> Profile:
    """Profile the engine of this package, between two calls; nothing of it is changed."""
    assert isinstance(backend, FlexBackend), backend.name
    held = stand(backend.engine, subject.requests)
    with torch.no_grad():
        profile = _on_device(held, subject) if held.slots.is_cuda else _on_host(held, subject)
    return _with_call(profile, backend, subject) if held.slots.is_cuda else profile


def _on_host(held: Standing, subject: Subject) -> Profile:
    """Profile a step without a device to trace."""
    timed = host_timed(held)
    play, graph = player(held)
    return _profile("host", timed, held, subject, step_us(held, play), graph, (HOST,))


def _on_device(held: Standing, subject: Subject) -> Profile:
    """Profile a step on CUDA: played without a profiler, then traced."""
    play, graph = player(held)
    us = step_us(held, play)
    found = traced(held, play)
    remarks = () if found.remark is None else (found.remark,)
    return _profile(
        "device", found.timed, held, subject, us, graph, remarks,
        gaps_us=us - sum(one.us for one in found.timed),
        kernels=len(found.played.names),
        kernels_per_layer=kernels_per_layer(found.timed, _layers(held)),
        traced_step_us=found.played.step_us,
        traced_gaps_us=found.played.gaps_us,
        traced_longest_gap_us=found.played.longest_gap_us,
    )  # fmt: skip


def _profile(
    timed_by: str,
    timed: Sequence[Timed],
    held: Standing,
    subject: Subject,
    us: float,
    graph: bool,
    remarks: tuple[str, ...],
    **figures: Any,
) -> Profile:
    """Put a step's figures together."""
    floor = _floor(held, subject)
    rows = op_rows(timed, floor)
    step = StepFigures(
        rows=len(held.contexts),
        mean_context=mean(held.contexts) + (held.steps - 1) / 2,
        steps=held.steps,
        graph=graph,
        step_us=us,
        busy_us=sum(one.us for one in timed),
        **figures,
        **over_floor(us, rows, floor),
    )
    return Profile(timed_by=timed_by, ops=rows, step=step, remarks=remarks)


def _floor(held: Standing, subject: Subject) -> Floor | None:
    """Return the floor of the steps that were timed; None where its parts are not known."""
    if subject.cost is None or subject.bandwidth is None:
        return None
    first = 1 if held.slots.is_cuda else 0
    read = held.kv_read(subject.cost, first, held.steps)
    return Floor(subject.cost.weight_bytes + read, subject.bandwidth)


def _layers(held: Standing) -> int:
    """Return how many layers the model has."""
    return len(held.machinery.programs.decode_decoder.specs)


def _with_call(profile: Profile, backend: Backend, subject: Subject) -> Profile:
    """Add the figures of one whole traced call, if its trace is whole."""
    before = backend.stats.graph_replays
    spans, wall = traced_call(_call(backend, subject))
    expected = (backend.stats.graph_replays - before) * (profile.step.kernels or 0)
    if not spans or len(spans) < expected * LEAST_OF_TRACE:
        lost = f"the trace of a whole call is cut: {len(spans)} of {expected} kernels or more"
        return replace(profile, remarks=(*profile.remarks, lost))
    return replace(profile, call=call_figures(spans, wall, subject.wall_s))


def _call(backend: Backend, subject: Subject) -> Callable[[], object]:
    """Return one whole call of a round."""
    return lambda: backend.generate(subject.requests)
