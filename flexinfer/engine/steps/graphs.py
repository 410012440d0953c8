"""Decode steps at a few fixed batch sizes (buckets): captured CUDA graphs, or plain calls.

Rows beyond the live ones are the pad slot, which writes to the scratch page only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flexinfer.attention.tables import upload
from flexinfer.engine.requests.outputs import EngineStats
from flexinfer.engine.steps.programs import Programs
from flexinfer.kernels.sampler import SamplerKind


def bucket_for(rows: int, max_batch_size: int) -> int:
    """Return the smallest bucket that holds `rows`: a power of two, or the largest batch itself."""
    assert 1 <= rows <= max_batch_size, (rows, max_batch_size)
    return min(1 << (rows - 1).bit_length(), max_batch_size)


def capture(
    step: Callable[[], Tensor], pool: tuple[int, int] | None, stats: EngineStats
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Compile by running a step twice, then capture it; return the graph and what it returns."""
    started = time.perf_counter()
    graph = torch.cuda.CUDAGraph()
    capturing = torch.cuda.graph(graph, pool=pool)  # type: ignore[arg-type]  # torch's own alias
    # torch's one capture stream: cuBLAS keeps 32 MiB for every stream it ever ran on
    stream = capturing.capture_stream
    assert stream is not None
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    compiled = time.perf_counter()
    with capturing:
        out = step()
    torch.cuda.synchronize()
    stats.compile_s += compiled - started
    stats.capture_s += time.perf_counter() - compiled
    return graph, out


@dataclass(frozen=True)
class Captured:
    """A graph, the slots it reads (int64 [bucket]) and what it returns (int32 [3, bucket])."""

    graph: torch.cuda.CUDAGraph
    slots: Tensor
    out: Tensor


class DecodeRunner:
    """Runs decode steps; with `graphs` each (bucket, sampler) is captured once and replayed."""

    def __init__(
        self, programs: Programs, max_batch_size: int, graphs: bool, stats: EngineStats
    ) -> None:
        """Capture nothing yet: `prepare` does."""
        self._programs, self._max, self._graphs, self._stats = (
            programs, max_batch_size, graphs, stats,
        )  # fmt: skip
        self._captured: dict[tuple[int, SamplerKind], Captured] = {}
        self._fed: dict[tuple[int, SamplerKind], tuple[int, ...]] = {}
        self._pool: tuple[int, int] | None = None

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes captured so far."""
        return tuple(sorted({bucket for bucket, _ in self._captured}))

    def forget(self) -> None:
        """Give every graph up: what they read lies elsewhere now."""
        self._captured.clear()
        self._fed.clear()
        self._pool = None

    def needs(self, rows: int, kind: SamplerKind) -> bool:
        """Return whether `prepare` has something to do."""
        return self._graphs and (bucket_for(rows, self._max), kind) not in self._captured

    def prepare(self, rows: int, kind: SamplerKind) -> None:
        """Capture the bucket for `rows` where graphs are on and it is not there yet."""
        key = (bucket_for(rows, self._max), kind)
        if self.needs(rows, kind):
            self._captured[key] = self._capture(*key)

    def bucket(self, rows: int, kind: SamplerKind) -> int:
        """Return how many rows a step of `rows` live ones computes."""
        if not self._graphs:
            return rows
        fits = [b for b, k in self._captured if k == kind and b >= rows]
        return min(fits) if fits else bucket_for(rows, self._max)

    def graph(self, rows: int, kind: SamplerKind) -> torch.cuda.CUDAGraph | None:
        """Return the graph that steps of `rows` live ones replay, if one is captured.

        It advances the slots that the last `run` named.
        """
        captured = self._captured.get((self.bucket(rows, kind), kind))
        return None if captured is None else captured.graph

    def run(self, slots: Sequence[int], kind: SamplerKind, columns: int) -> Tensor:
        """Advance `slots`; return int32 [3, bucket], the live rows first.

        The tensor is overwritten by the next step. `columns` bounds the pages in use; a captured
        graph always reads the whole table.
        """
        if not self._graphs:
            self._stats.eager_steps += 1
            return self._programs.decode(self._upload(slots, len(slots)), kind, columns)
        bucket = self.bucket(len(slots), kind)
        self.prepare(bucket, kind)
        captured = self._captured[bucket, kind]
        if self._fed.get((bucket, kind)) != tuple(slots):
            captured.slots.copy_(self._upload(slots, bucket), non_blocking=True)
            self._fed[bucket, kind] = tuple(slots)
        captured.graph.replay()
        self._stats.graph_replays += 1
        return captured.out

    def _upload(self, slots: Sequence[int], bucket: int) -> Tensor:
        """Return int64 [bucket], padded with the pad slot."""
        padded = np.full(bucket, self._programs.tables.pad_slot, dtype=np.int64)
        padded[: len(slots)] = slots
        return upload(padded, self._programs.tables.table.device)

    def _capture(self, bucket: int, kind: SamplerKind) -> Captured:
        """Capture a step of pad rows."""
        slots = self._upload((), bucket)
        columns = self._programs.tables.table.shape[1]
        step = partial(self._programs.decode, slots, kind, columns)
        graph, out = capture(step, self._pool, self._stats)
        self._pool = graph.pool()
        return Captured(graph, slots, out)
