"""What columns of a bench table mean where their names do not tell, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.tasks.bench.compare.side_by_side import labels
from flexinfer.tasks.bench.result import DEFINITIONS, BenchResult

NO_ROOFLINE = (
    "roofline %: none without a CUDA device (the copy bandwidth is its measure) or decode steps"
)
TTFT = (
    "ttft s: from the start of the call to a request's first token, p50 of the requests; waiting "
    "for a place in the batch is in it"
)
RESIDENT = (
    "peak GB: without a CUDA device the largest resident set of the whole process so far, Python "
    "and its libraries included"
)
CALM_PCT = 10.0
"""How much a row's rounds may differ before a reader is told of it."""


def legend(rows: Sequence[BenchResult]) -> list[str]:
    """Return a line for each figure of the rows that needs words."""
    done = [row for row in rows if row.error is None]
    lines = [f"tok/s: {DEFINITIONS['decode_tps']}"]
    if any(row.ttft_s is not None for row in done):
        lines.append(TTFT)
    if done and all(row.roofline_pct is None for row in done):
        lines.append(NO_ROOFLINE)
    if any(row.peak_memory_gb is not None and row.peak_reserved_gb is None for row in done):
        lines.append(RESIDENT)
    return [*lines, *_scatter(rows)]


def _scatter(rows: Sequence[BenchResult]) -> list[str]:
    """Return which rows' rounds differ by more than CALM_PCT, nothing where none do."""
    wild = [
        f"{label} by {row.wall_spread_pct:.0f} %"
        for label, row in zip(labels(rows), rows, strict=True)
        if row.wall_spread_pct is not None and row.wall_spread_pct > CALM_PCT
    ]
    if not wild:
        return []
    how = "slowest less fastest wall clock, of the median"
    return [f"rounds scatter ({how}): {', '.join(wild)}; a smaller difference may be chance"]
