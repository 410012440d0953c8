"""How long a launch takes with the host out of the way: many of them in a replayed CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

LEAST = 16
"""Launches of a graph, at least: what the replay itself costs is shared by all."""
WARM, ROUNDS = 2, 9
"""Replays before those that count, and those that do."""


class GraphClock:
    """Times launches on one device; every graph is freed after its rounds."""

    def __init__(self, device: torch.device) -> None:
        """Make what all captures share: torch's one capture stream and a memory pool."""
        self._device = device
        with torch.cuda.device(device):
            keeper = torch.cuda.CUDAGraph()
            stream = torch.cuda.graph(keeper).capture_stream
            assert stream is not None
            self._stream = stream
            cell = torch.zeros(1, device=device)
            self._capture(keeper, lambda: cell.add_(1.0), None)
        # a pool lives as long as a graph that uses it, and is costly to fill anew
        self._keeper: torch.cuda.CUDAGraph | None = keeper

    def __call__(self, launch: Callable[[int], object], copies: int) -> float:
        """Return the median microseconds of a launch over the copies 0, 1, ... in turn.

        The launch is run before it is captured: what compiles, or fails, does so then.
        """
        assert self._keeper is not None
        count = copies * -(-LEAST // copies)

        def all_copies() -> None:
            for number in range(count):
                launch(number % copies)

        with torch.cuda.device(self._device):
            self._warm(launch)
            graph = torch.cuda.CUDAGraph()
            self._capture(graph, all_copies, self._keeper.pool())
            try:
                return 1e3 * median(self._rounds(graph)) / count
            finally:
                torch.cuda.synchronize()
                graph.reset()

    def close(self) -> None:
        """Give the memory pool up."""
        if self._keeper is not None:
            self._keeper.reset()
        self._keeper = None

    def _warm(self, launch: Callable[[int], object]) -> None:
        """Run the launch where it will be captured."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                launch(0)
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()

    def _capture(
        self, graph: torch.cuda.CUDAGraph, run: Callable[[], object], pool: tuple[int, int] | None
    ) -> None:
        """Capture `run`; torch.cuda.graph would empty the allocator's cache at every capture."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(*(() if pool is None else (pool,)))
            try:
                run()
            finally:
                graph.capture_end()
        torch.cuda.synchronize()

    def _rounds(self, graph: torch.cuda.CUDAGraph) -> list[float]:
        """Return the milliseconds of every replay that counts."""
        for _ in range(WARM):
            graph.replay()
        marks = []
        for _ in range(ROUNDS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in marks]
