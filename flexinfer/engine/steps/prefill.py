"""Prefill steps: short ones as captured CUDA graphs, at a few fixed numbers of tokens.

A short step is bound by the host, which launches hundreds of kernels: as a graph it takes what the
device needs. What is missing to the fixed number is the pad slot's, which writes to scratch only;
so does all of the batch that a graph is captured with, and capturing leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flexinfer.core.step import Chunk
from flexinfer.engine.requests.outputs import EngineStats
from flexinfer.engine.steps.batch import HostBatch, prefill_batch, views
from flexinfer.engine.steps.graphs import capture
from flexinfer.engine.steps.programs import Programs
from flexinfer.kernels.sampler import SamplerKind

GRAPH_TOKENS = 2048
"""Longer steps keep the device busy for longer than the host takes to launch them."""
GRAPH_STEP = 256
"""Fixed numbers of tokens are multiples of this."""


@dataclass(frozen=True)
class CapturedPrefill:
    """A graph, the tensors it reads (the parts of a HostBatch) and what it returns."""

    graph: torch.cuda.CUDAGraph
    parts: tuple[Tensor, ...]
    out: Tensor


class PrefillRunner:
    """Runs prefill steps; with `graphs` short ones are captured at their first use."""

    def __init__(self, programs: Programs, graphs: bool, stats: EngineStats) -> None:
        """Capture nothing yet."""
        self._programs, self._graphs, self._stats = programs, graphs, stats
        self._captured: dict[tuple[int, int, SamplerKind], CapturedPrefill] = {}
        self._pool: tuple[int, int] | None = None

    def forget(self) -> None:
        """Give every graph up: what they read lies elsewhere now."""
        self._captured.clear()
        self._pool = None

    def run(self, chunks: Sequence[Chunk], kept_rows: int, kind: SamplerKind) -> Tensor:
        """Compute chunks; return int32 [3, K] with K at least `kept_rows` where any is sampled.

        The tensor is overwritten by the next step.
        """
        tables = self._programs.tables
        host = prefill_batch(chunks, self._programs.tile, kept_rows, tables.pad_slot)
        tokens, kept = host.rows.shape[1], host.kept.shape[1]
        self._stats.prefill_steps += 1
        self._stats.prefill_tokens += tokens
        if not self._graphs or not kept or tokens > GRAPH_TOKENS:
            return self._programs.prefill(host.on(tables.table.device), kind)
        return self._replay(whole(host, tables.pad_slot), kind)

    def _replay(self, host: HostBatch, kind: SamplerKind) -> Tensor:
        """Run the graph of the batch's size, capturing it where there is none."""
        device = self._programs.tables.table.device
        key = (host.rows.shape[1], host.kept.shape[1], kind)
        if key not in self._captured:
            idle = blank(host, self._programs.tables.pad_slot)
            parts = tuple(torch.from_numpy(part).to(device) for part in idle)
            step = partial(self._programs.prefill, views(*parts), kind)
            graph, out = capture(step, self._pool, self._stats)
            self._pool = graph.pool()
            self._captured[key] = CapturedPrefill(graph, parts, out)
        captured = self._captured[key]
        for part, values in zip(captured.parts, host, strict=True):
            part.copy_(
                torch.from_numpy(np.ascontiguousarray(values)).pin_memory(), non_blocking=True
            )
        captured.graph.replay()
        return captured.out


def whole(host: HostBatch, pad_slot: int) -> HostBatch:
    """Pad a batch to a fixed number of tokens, and of tiles: one more a kept row and a pad's."""
    tokens = _whole_tokens(host.rows.shape[1])
    n_tiles = most_tiles(tokens, host.kept.shape[1], host.tiles.shape[2])
    return host.padded(tokens, n_tiles, pad_slot)


def most_tiles(tokens: int, kept: int, tile: int) -> int:
    """Return the tiles of `tile` queries that a padded step of `tokens` and `kept` rows has."""
    return _whole_tokens(tokens) // tile + kept + 2


def _whole_tokens(tokens: int) -> int:
    """Return the tokens of a padded step."""
    return -(-tokens // GRAPH_STEP) * GRAPH_STEP


def blank(host: HostBatch, pad_slot: int) -> HostBatch:
    """Return a batch of the same sizes that is the pad slot's throughout."""
    nothing = HostBatch(
        host.rows[:, :0], host.tiles[:, :0], host.tile_slots[:0],
        np.stack((np.zeros_like(host.kept[0]), np.full_like(host.kept[1], pad_slot))),
    )  # fmt: skip
    return nothing.padded(host.rows.shape[1], host.tiles.shape[1], pad_slot)
