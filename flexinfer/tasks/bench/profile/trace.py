"""What ran on a CUDA device, kernel by kernel, as torch.profiler (CUPTI) tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from flexinfer.tasks.bench.profile.timeline import Span

MARK = "spin_kernel"
"""Part of the name of the kernel that `mark` launches; nothing else launches it."""
WAITS = ("Sync", "Wait Event")
"""How the names of events end that are no work."""


def mark() -> None:
    """Launch a kernel that does nothing and is known by its name: a mark in the trace."""
    torch.cuda._sleep(0)  # type: ignore[no-untyped-call]  # torch's own has no annotations


@contextmanager
def tracing() -> Iterator[list[Span]]:
    """Give a list that holds, once the block has ended, what ran in it, sorted by start."""
    spans: list[Span] = []
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as session:
        yield spans
        torch.cuda.synchronize()
    assert session.profiler is not None
    assert session.profiler.kineto_results is not None
    for event in session.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA and not event.name().endswith(WAITS):
            start = event.start_ns()
            end = start + event.duration_ns()
            spans.append(Span(event.name(), start, end, event.correlation_id()))
    spans.sort(key=lambda span: (span.start, span.end))
