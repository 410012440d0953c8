"""How busy the device is over a whole call, and whose the gaps are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from flexinfer.tasks.bench.profile.result import CallFigures
from flexinfer.tasks.bench.profile.timeline import Laid, Span, lay
from flexinfer.tasks.bench.profile.traced import tracing


def traced_call(call: Callable[[], object]) -> tuple[list[Span], float]:
    """Return the kernels of `call`, sorted by start, and the seconds it took under the profiler."""
    with tracing() as spans:
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    return [span for span in spans if not span.is_copy], wall


class CallGaps(NamedTuple):
    """Idle time between the first and the last span: inside a launch, before and after graphs."""

    in_step: list[int]
    between: list[int]
    prefill: list[int]


def sort_gaps(spans: Sequence[Span], laid: Laid) -> CallGaps:
    """Tell gaps inside a graph (a launch of several spans) from those between launches.

    `prefill` are the latter before the first graph; all are `between` where there is no graph.
    """
    counts, gaps = Counter(span.launch for span in spans), CallGaps([], [], [])
    first_graph = next((i for i, span in enumerate(spans) if counts[span.launch] > 1), 0)
    for i in range(1, len(spans)):
        inside = spans[i].launch == spans[i - 1].launch
        outside = gaps.prefill if i <= first_graph else gaps.between
        (gaps.in_step if inside else outside).append(laid.gap[i])
    return gaps


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
