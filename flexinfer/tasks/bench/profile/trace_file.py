"""Steps under torch.profiler with all that it can see, for a viewer of Chrome traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from flexinfer.errors import one_line
from flexinfer.tasks.bench.profile.programs import recorded
from flexinfer.tasks.bench.profile.record import Op, Recorder
from flexinfer.tasks.bench.profile.session import profiling
from flexinfer.tasks.bench.profile.standing import Standing
from flexinfer.tasks.bench.profile.timeline import Span, split_at

STEPS, REPEATS = 4, 5
Step = list[tuple[Op, Sequence[Span]]]
"""The operations of a step, each with what ran in it."""
MARK = "flexinfer.mark"
"""The name of the range that stands before each operation in a trace of the host."""


def write_device_trace(held: Standing, play: Callable[[], object], path: str) -> str | None:
    """Write a few steps as they are played: launches of the host, kernels of the device.

    Returns why there is no file, None where there is one.
    """
    held.restore()
    torch.cuda.synchronize()
    with profiling([ProfilerActivity.CPU, ProfilerActivity.CUDA]) as session:
        for _ in range(min(STEPS, held.steps)):
            play()
        torch.cuda.synchronize()
    return _lost(session, path)


def host_traces(held: Standing, path: str | None) -> tuple[list[Step], str | None]:
    """Trace a step again and again on the host; return its operations with what ran in them.

    Each operation is marked. Writes the last trace to `path`, if there is one; what is returned
    last is why that failed.
    """
    recorder = Recorder(_mark)
    program = recorded(held.machinery.programs, recorder, lambda w: held.reach(w, 0, 1))
    assert program is not None, "compiled where there is no CUDA"
    steps: list[Step] = []
    for _ in range(REPEATS + 1):
        held.restore()
        recorder.ops.clear()
        with profiling([ProfilerActivity.CPU]) as session:
            recorder.begin()
            program.decode(held.slots, held.kind, held.columns)
        parts = split_at(_host_spans(session), MARK)
        steps.append(list(zip(recorder.ops, parts, strict=True)))
    return steps[1:], None if path is None else _lost(session, path)


def _lost(session: profile, path: str) -> str | None:
    """Write a trace; return why it is not there, None where it is: the figures do without."""
    try:
        session.export_chrome_trace(path)
        # kineto tells a file that it cannot open to its log alone
        why = None if Path(path).exists() else "nothing was written"
    except (OSError, RuntimeError) as error:
        why = one_line(error)
    return why and f"no trace in {path}: {why}"


def _host_spans(session: profile) -> list[Span]:
    """Return what the host did, sorted by start, what holds others before them."""
    assert session.profiler is not None
    assert session.profiler.kineto_results is not None
    spans = [
        Span(event.name(), event.start_ns(), event.start_ns() + event.duration_ns(), 0)
        for event in session.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CPU
    ]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def _mark() -> None:
    """Set a mark in the trace."""
    with record_function(MARK):
        pass
