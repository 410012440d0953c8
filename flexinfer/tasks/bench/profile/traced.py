"""Decode steps under torch.profiler (CUPTI): what each operation takes on the device, and gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from statistics import median
from typing import NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.bench.profile.programs import recorded
from flexinfer.tasks.bench.profile.record import Op, Recorder
from flexinfer.tasks.bench.profile.session import profiling
from flexinfer.tasks.bench.profile.standing import Standing
from flexinfer.tasks.bench.profile.step import Timed
from flexinfer.tasks.bench.profile.timeline import Span, lay, short_name, split_at

MARK = "spin_kernel"
"""Part of the name of the kernel that `mark` launches; nothing else launches it."""
WAITS = ("Sync", "Wait Event")
"""How the names of events end that are no work."""
COMPILED = "blocks are compiled as a whole: rows are kernels, not operations"
Marked = Sequence[tuple[Op, Sequence[Span]]]
"""Every operation of a step run by single launches, with its kernels."""


def mark() -> None:
    """Launch a kernel that does nothing and is known by its name: a mark in the trace."""
    torch.cuda._sleep(0)  # type: ignore[no-untyped-call]  # torch's own has no annotations


@contextmanager
def tracing() -> Iterator[list[Span]]:
    """Give a list that holds, once the block has ended, what ran in it, sorted by start."""
    spans: list[Span] = []
    torch.cuda.synchronize()
    with profiling([ProfilerActivity.CUDA]) as session:
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


class Played(NamedTuple):
    """A step as it was played: its kernels in order with what each adds to busy time (us).

    Times are medians over the steps, so that a step which another process interrupts does not
    count; the longest gap is that of all steps.
    """

    names: tuple[str, ...]
    own_us: tuple[float, ...]
    step_us: float
    gaps_us: float
    longest_gap_us: float


class Traced(NamedTuple):
    """The operations of a step, the step as it was played, and what is to be said of them."""

    timed: tuple[Timed, ...]
    played: Played | None = None
    remark: str | None = None


def traced(held: Standing, play: Callable[[], object]) -> Traced:
    """Trace steps, and say which operation each kernel belongs to."""
    held.restore()
    with tracing() as spans:
        for _ in range(held.steps + 1):
            play()
    found, marked = played(spans, held.steps), _marked(held)
    return Traced(by_kernel(found), found, COMPILED) if marked is None else assign(marked, found)


def played(spans: Sequence[Span], steps: int) -> Played:
    """Return the middle of `steps` equal steps, `spans` being theirs and those of one before them.

    Raises EnvironmentUnfit where the profiler missed some.
    """
    count, rest = divmod(len(spans), steps + 1)
    if rest or not count:
        raise EnvironmentUnfit(f"torch.profiler saw {len(spans)} kernels in {steps + 1} steps")
    laid = lay(spans)
    ends = [span.end for span in spans[count - 1 :: count]]
    gaps = [laid.gap[at + 1 : at + count] for at in range(count, len(spans), count)]
    return Played(
        names=tuple(span.name for span in spans[:count]),
        own_us=tuple(median(laid.own[count + at :: count]) / 1e3 for at in range(count)),
        step_us=median(end - before for before, end in pairwise(ends)) / 1e3,
        gaps_us=median(map(sum, gaps)) / 1e3,
        longest_gap_us=max(chain(*gaps), default=0) / 1e3,
    )


def by_kernel(found: Played) -> tuple[Timed, ...]:
    """Return each kernel as an operation of its name."""
    both = zip(found.names, found.own_us, strict=True)
    return tuple(Timed(Op(short_name(name), ""), 1, us) for name, us in both)


def assign(marked: Marked, found: Played) -> Traced:
    """Give each operation the times of its kernels among the played ones, found by their order.

    Where a played step has other kernels than single launches, that is said; where it has another
    number of them, operations have the times of single launches.
    """
    launched = [span.name for _, spans in marked for span in spans]
    if len(launched) != len(found.names):
        alone = tuple(Timed(op, len(s), lay(s).busy / 1e3) for op, s in marked if s)
        return Traced(alone, found, (
            f"a played step has {len(found.names)} kernels, single launches {len(launched)}: "
            "operations are timed as single launches"
        ))  # fmt: skip
    times = iter(found.own_us)
    timed = tuple(
        Timed(op, len(spans), sum(next(times) for _ in spans)) for op, spans in marked if spans
    )
    strange = sum(a != b for a, b in zip(launched, found.names, strict=True))
    return Traced(timed, found, _strange(strange, len(launched)) if strange else None)


def _strange(count: int, of: int) -> str:
    """Say what it means that kernels have other names than those of single launches."""
    differ, whose = ("differs", "its") if count == 1 else ("differ", "their")
    return (
        f"{count} of the {of} kernels of a step {differ} from those of operations launched one by "
        f"one, which tell whose kernel is whose: {whose} operation is found by place alone"
    )


def _marked(held: Standing) -> Marked | None:
    """Run a step by single launches, a mark before each operation; None where it is compiled."""
    recorder = Recorder(mark)
    program = recorded(held.machinery.programs, recorder, lambda w: held.reach(w, 1, held.steps))
    if program is None:
        return None
    for _ in range(2):
        held.restore()
        recorder.ops.clear()
        with tracing() as spans:
            recorder.begin()
            program.decode(held.slots, held.kind, held.columns)
    parts = split_at(spans, MARK)
    if len(parts) != len(recorder.ops):
        raise EnvironmentUnfit(f"torch.profiler saw {len(parts)} of {len(recorder.ops)} marks")
    return list(zip(recorder.ops, parts, strict=True))
