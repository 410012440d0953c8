"""The times of one decode step: the whole as it is played, and each operation by a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch

from flexinfer.tasks.bench.profile.programs import recorded
from flexinfer.tasks.bench.profile.record import Op, Recorder
from flexinfer.tasks.bench.profile.standing import Standing

REPEATS = 5


class Timed(NamedTuple):
    """One operation of a step: its kernels (None: not counted) and what it adds to busy time."""

    op: Op
    kernels: int | None
    us: float


def host_timed(held: Standing) -> tuple[Timed, ...]:
    """Time each operation by the host's clock, where operations end before the next begins."""
    marks: list[float] = []
    recorder = Recorder(lambda: marks.append(time.perf_counter()))
    program = recorded(held.machinery.programs, recorder, lambda w: held.reach(w, 0, 1))
    assert program is not None, "compiled where there is no CUDA"
    times: list[list[float]] = []
    for _ in range(REPEATS + 1):
        marks.clear()
        recorder.ops.clear()
        held.restore()
        recorder.begin()
        program.decode(held.slots, held.kind, held.columns)
        recorder.begin()
        times.append([end - start for start, end in pairwise(marks)])
    middles = [1e6 * median(column) for column in zip(*times[1:], strict=True)]
    ops = recorder.ops[:-1]
    return tuple(Timed(op, None, us) for op, us in zip(ops, middles, strict=True))


def step_us(held: Standing, play: Callable[[], object]) -> float:
    """Return the microseconds of a step played back to back, by no profiler: median of runs."""
    run = _device_run if held.slots.is_cuda else _host_run
    return median(run(held, play) for _ in range(REPEATS + 1))


def _host_run(held: Standing, play: Callable[[], object]) -> float:
    """Time steps by the host's clock."""
    held.restore()
    start = time.perf_counter()
    for _ in range(held.steps):
        play()
    return 1e6 * (time.perf_counter() - start) / held.steps


def _device_run(held: Standing, play: Callable[[], object]) -> float:
    """Time steps by events; a step before them keeps the device busy while they are launched."""
    held.restore()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's constructor
    play()
    start.record()
    for _ in range(held.steps):
        play()
    end.record()
    end.synchronize()
    return 1e3 * float(start.elapsed_time(end)) / held.steps


def player(held: Standing) -> tuple[Callable[[], object], bool]:
    """Return what takes one step as the engine does, without the host's part, and if by a graph."""
    machinery, rows = held.machinery, len(held.contexts)
    graph = machinery.runner.graph(rows, held.kind)
    if graph is not None:
        machinery.runner.run(held.slots[:rows].tolist(), held.kind, held.columns)
        return graph.replay, True
    return lambda: machinery.programs.decode(held.slots, held.kind, held.columns), False
