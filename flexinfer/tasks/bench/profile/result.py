"""What a profile is of, and what it reports; None is "does not apply" or "cannot be told".

Units: `_us` microseconds, `_ms` milliseconds, `_s` seconds; GB are 10**9 bytes; `_pct` of 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexinfer.engine.requests.outputs import Request
from flexinfer.tasks.roofline import StepCost


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The requests of a round, the median wall clock of the rounds, and the parts of the floor.

    Every request asks for two new tokens at least. `bandwidth` is in bytes a second. `trace_path`
    is where torch.profiler's trace goes, None for nowhere.
    """

    requests: Sequence[Request]
    wall_s: float | None = None
    cost: StepCost | None = None
    bandwidth: float | None = None
    trace_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """A kernel of a step, on a CPU an operator of torch's: calls and microseconds, all of a step.

    `operation` is what launches it, "" where that cannot be told; a layer has its share of those
    that belong to layers, and of all where that cannot be told.
    """

    name: str
    operation: str
    calls_step: float
    calls_layer: float | None
    us_each: float
    us_step: float
    us_layer: float | None
    share_pct: float


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """One operation of one shape, all its calls in a step together.

    `bytes_step` must be read and written: weights once a call, of the KV cache what is attended to.
    `us_step` is what the operation adds to the time the device is busy, so that overlapping kernels
    count once. `floor_us` is what the bytes take at the bandwidth of a copy, `over_us` the rest.
    """

    name: str
    shape: str
    calls: int
    kernels: int | None
    us_each: float
    us_step: float
    share_pct: float
    bytes_step: int | None = None
    gb_per_s: float | None = None
    floor_us: float | None = None
    over_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """One decode step of `rows` sequences, the mean over `steps` steps.

    `step_us` is measured without a profiler; `busy_us` is the sum of the operations and `gaps_us`
    the difference. `traced_` figures are of the profiled steps, whose gaps profiling stretches.
    They and the operations are medians over those steps, the longest gap that of all.
    `over_floor_us` = `ops_over_us` (operations beyond the time of their bytes) + `beyond_floor_us`
    (bytes that the floor leaves out: activations) + `gaps_us`.
    """

    rows: int
    mean_context: float
    steps: int
    graph: bool
    step_us: float
    busy_us: float
    gaps_us: float | None = None
    kernels: int | None = None
    kernels_per_layer: float | None = None
    traced_step_us: float | None = None
    traced_gaps_us: float | None = None
    traced_longest_gap_us: float | None = None
    floor_us: float | None = None
    floor_pct: float | None = None
    over_floor_us: float | None = None
    ops_over_us: float | None = None
    beyond_floor_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class CallFigures:
    """A whole call under the profiler, prefill and all steps; shares are of `wall_s`.

    `busy_share` is the union of kernels; `fed_share` adds the gaps inside a captured step, which no
    host can cause (profiling stretches them, too). The wall is busy + `in_step_gaps_s` +
    `between_gaps_s` (after the first captured step) + `prefill_gaps_s` (before it) + `outside_s`
    (before the first kernel and after the last).
    """

    wall_s: float
    untraced_wall_s: float | None
    kernels: int
    busy_s: float
    busy_share: float
    fed_share: float
    in_step_gaps_s: float
    between_gaps_s: float
    prefill_gaps_s: float
    outside_s: float
    longest_in_step_gap_us: float
    longest_between_gap_us: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All of it; `timed_by` is `device` (traced kernels) or `host` (a clock around operations).

    `kernels` are those that take most of a step, the longest first; `trace_file` is there to be
    opened in a viewer of Chrome traces.
    """

    timed_by: str
    ops: tuple[OpRow, ...]
    step: StepFigures
    call: CallFigures | None = None
    kernels: tuple[KernelRow, ...] = ()
    trace_file: str | None = None
    remarks: tuple[str, ...] = ()
