"""How busy the device is over a whole call, and whose the gaps are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from flexinfer.tasks.bench.profile.result import CallFigures
from flexinfer.tasks.bench.profile.timeline import Span, lay, sort_gaps
from flexinfer.tasks.bench.profile.trace import tracing


def traced_call(call: Callable[[], object]) -> tuple[list[Span], float]:
    """Return the kernels of `call`, sorted by start, and the seconds it took under the profiler."""
    with tracing() as spans:
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    return [span for span in spans if not span.is_copy], wall


def call_figures(
    spans: Sequence[Span], wall_s: float, untraced_wall_s: float | None
) -> CallFigures:
    """Return the figures of a call's kernels, of which there is at least one."""
    laid = lay(spans)
    gaps = sort_gaps(spans, laid)
    in_step, between, prefill = (sum(kind) / 1e9 for kind in gaps)
    busy = laid.busy / 1e9
    return CallFigures(
        wall_s=wall_s,
        untraced_wall_s=untraced_wall_s,
        kernels=len(spans),
        busy_s=busy,
        busy_share=busy / wall_s,
        fed_share=(busy + in_step) / wall_s,
        in_step_gaps_s=in_step,
        between_gaps_s=between,
        prefill_gaps_s=prefill,
        outside_s=wall_s - busy - in_step - between - prefill,
        longest_in_step_gap_us=max(gaps.in_step, default=0) / 1e3,
        longest_between_gap_us=max(gaps.between, default=0) / 1e3,
    )
