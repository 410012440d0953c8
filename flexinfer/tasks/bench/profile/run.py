"""`bench --profile`: after the rounds, where the time of a decode step and of a call goes."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from flexinfer.backends.base.protocol import Backend
from flexinfer.backends.flex import FlexBackend
from flexinfer.tasks.bench.profile.call import call_figures, traced_call
from flexinfer.tasks.bench.profile.figures import Floor, kernels_per_layer, op_rows, over_floor
from flexinfer.tasks.bench.profile.kernels import device_launches, host_launches, top_kernels
from flexinfer.tasks.bench.profile.result import Profile, StepFigures, Subject
from flexinfer.tasks.bench.profile.standing import Standing, stand
from flexinfer.tasks.bench.profile.step import host_timed, player, step_us
from flexinfer.tasks.bench.profile.trace_file import host_traces, write_device_trace
from flexinfer.tasks.bench.profile.traced import Traced, traced

LEAST_OF_TRACE = 0.8
"""Of the kernels of captured steps; copies among a step's kernels are not counted in a call."""
HOST = "timed by the host's clock around each operation: there is no CUDA device"


def profile_backend(backend: Backend, subject: Subject) -> Profile:
    """Profile the engine of this package, between two calls; nothing of it is changed."""
    assert isinstance(backend, FlexBackend), backend.name
    held = stand(backend.engine, subject.requests)
    on_device = held.slots.is_cuda
    with torch.no_grad():
        profile = profile_step(held, subject, on_device)
    return _with_call(profile, backend, subject) if on_device else profile


def profile_step(held: Standing, subject: Subject, on_device: bool) -> Profile:
    """Profile a step: played without a profiler, then traced, or timed by the host's clock."""
    play, graph = player(held)
    us = step_us(held, play)
    found = traced(held, play) if on_device else Traced(host_timed(held), remark=HOST)
    path, lost = subject.trace_path, None
    if on_device:
        launched = device_launches(found)
        if path is not None:
            lost = write_device_trace(held, play, path)
    else:
        steps, lost = host_traces(held, path)
        launched = host_launches(steps)
    busy, floor = sum(one.us for one in found.timed), _floor(held, subject, on_device)
    rows = op_rows(found.timed, floor)
    step = StepFigures(
        rows=len(held.contexts),
        mean_context=mean(held.contexts) + (held.steps - 1) / 2,
        steps=held.steps,
        graph=graph,
        step_us=us,
        busy_us=busy,
        **_of_trace(found, us - busy, held.layers),
        **over_floor(us, rows, floor),
    )
    return Profile(
        timed_by="device" if on_device else "host",
        ops=rows,
        step=step,
        kernels=top_kernels(launched, held.layers),
        trace_file=path if lost is None else None,
        remarks=tuple(line for line in (found.remark, lost) if line is not None),
    )


def _of_trace(found: Traced, gaps_us: float, layers: int) -> dict[str, Any]:
    """Return the figures of a step that only a trace tells."""
    if found.played is None:
        return {}
    return {
        "gaps_us": gaps_us,
        "kernels": len(found.played.names),
        "kernels_per_layer": kernels_per_layer(found.timed, layers),
        "traced_step_us": found.played.step_us,
        "traced_gaps_us": found.played.gaps_us,
        "traced_longest_gap_us": found.played.longest_gap_us,
    }


def _floor(held: Standing, subject: Subject, on_device: bool) -> Floor | None:
    """Return the floor of the steps that were timed; None where its parts are not known."""
    if subject.cost is None or subject.bandwidth is None:
        return None
    read = held.kv_read(subject.cost, int(on_device), held.steps)
    return Floor(subject.cost.weight_bytes + read, subject.bandwidth)


def _with_call(profile: Profile, backend: Backend, subject: Subject) -> Profile:
    """Add the figures of one whole traced call, if its trace is whole."""
    before = backend.stats.graph_replays
    spans, wall = traced_call(lambda: backend.generate(subject.requests))
    expected = (backend.stats.graph_replays - before) * (profile.step.kernels or 0)
    if not spans or len(spans) < expected * LEAST_OF_TRACE:
        lost = f"the trace of a whole call is cut: {len(spans)} of {expected} kernels or more"
        return replace(profile, remarks=(*profile.remarks, lost))
    return replace(profile, call=call_figures(spans, wall, subject.wall_s))
