"""A profile as text: rows of cells for a table, and what needs saying in words."""

from __future__ import annotations

from flexinfer.tasks.bench.profile.result import (
    CallFigures,
    KernelRow,
    OpRow,
    Profile,
    StepFigures,
)
from flexinfer.tasks.columns import fitted, markdown, number

HEAD = (
    "operation", "shape", "calls", "kernels", "us each", "us a step", "share %", "MB", "GB/s",
    "floor us", "over us",
)  # fmt: skip
KERNEL_HEAD = (
    "kernel", "operation", "a step", "a layer", "us each", "us a step", "us a layer", "share %",
)  # fmt: skip
WORDS = 2
"""How many columns are words, of both tables."""


def profile_table(profile: Profile, width: int | None = None) -> list[str]:
    """Return aligned lines, or a list where they exceed the columns of a screen."""
    rows, kernels = [HEAD, *map(op_cells, profile.ops)], _kernel_rows(profile)
    top = [*fitted(kernels, WORDS, width), ""] if kernels else []
    return [*fitted(rows, WORDS, width), "", *top, *profile_words(profile)]


def profile_markdown(profile: Profile) -> list[str]:
    """Return a Markdown table and a list."""
    lines, kernels = markdown([HEAD, *map(op_cells, profile.ops)], WORDS), _kernel_rows(profile)
    top = [*markdown(kernels, WORDS), ""] if kernels else []
    return [*lines, "", *top, *(f"- {words}" for words in profile_words(profile))]


def _kernel_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return the table of kernels, [] where there are none."""
    return [KERNEL_HEAD, *map(kernel_cells, profile.kernels)] if profile.kernels else []


def profile_words(profile: Profile) -> list[str]:
    """Return what the rows cannot hold: the step, its floor, its gaps, the call, remarks."""
    call = [] if profile.call is None else _call(profile.call)
    trace = [] if profile.trace_file is None else [f"trace: {profile.trace_file}"]
    return [*_step(profile.step), *_floor(profile.step), *call, *profile.remarks, *trace]


def kernel_cells(row: KernelRow) -> tuple[str, ...]:
    """Return the cells of a kernel."""
    return (
        row.name, row.operation, number(row.calls_step, 0), number(row.calls_layer, 1),
        number(row.us_each, 2), number(row.us_step, 1), number(row.us_layer, 2),
        number(row.share_pct, 1),
    )  # fmt: skip


def op_cells(row: OpRow) -> tuple[str, ...]:
    """Return the cells of an operation."""
    megabytes = None if row.bytes_step is None else row.bytes_step / 1e6
    return (
        row.name, row.shape, str(row.calls), number(row.kernels, 0), number(row.us_each, 2),
        number(row.us_step, 1), number(row.share_pct, 1), number(megabytes, 2),
        number(row.gb_per_s, 0), number(row.floor_us, 1), number(row.over_us, 1),
    )  # fmt: skip


def _step(step: StepFigures) -> list[str]:
    """Say what a step takes."""
    how = "in a CUDA graph" if step.graph else "without a CUDA graph"
    lines = [
        f"a step of {step.rows} rows at context {step.mean_context:.0f} {how}: "
        f"{step.step_us:.1f} us"
    ]
    if step.gaps_us is None:
        lines[0] += (
            f"; its operations add up to {step.busy_us:.1f}, timed in a run of their own in which "
            "marking each takes time, too"
        )
    else:
        lines[0] += f", of which operations {step.busy_us:.1f} and gaps {step.gaps_us:.1f}"
    if step.traced_gaps_us is not None:
        layer = step.kernels_per_layer
        each = "" if layer is None else f", {layer:.1f} a layer"
        lines.append(
            f"{step.kernels} kernels a step{each}; under the profiler a step takes "
            f"{step.traced_step_us:.1f} us with gaps of {step.traced_gaps_us:.1f}, the longest "
            f"{step.traced_longest_gap_us:.1f}"
        )
    return lines


def _floor(step: StepFigures) -> list[str]:
    """Say how far the step is above its floor, and where that goes."""
    if step.floor_us is None:
        return []
    line = (
        f"floor {step.floor_us:.1f} us ({step.floor_pct:.1f} % of the step); over it "
        f"{step.over_floor_us:.1f} us"
    )
    if step.ops_over_us is not None:
        line += (
            f": operations beyond their bytes {step.ops_over_us:.1f}, bytes beyond the floor's "
            f"{step.beyond_floor_us:.1f}, gaps {number(step.gaps_us, 1)}"
        )
    return [line]


def _call(call: CallFigures) -> list[str]:
    """Say how busy the device was over a whole call."""
    untraced = call.untraced_wall_s
    beside = "" if untraced is None else f" (without the profiler {untraced:.3f} s)"
    return [
        f"a whole call under the profiler: {call.wall_s:.3f} s{beside}, {call.kernels} kernels; "
        f"busy {100 * call.busy_share:.2f} %, with the gaps inside steps "
        f"{100 * call.fed_share:.2f} %",
        f"idle: inside steps {1e3 * call.in_step_gaps_s:.1f} ms (longest "
        f"{call.longest_in_step_gap_us:.0f} us), between steps {1e3 * call.between_gaps_s:.1f} ms "
        f"(longest {call.longest_between_gap_us:.0f} us), before the first captured step "
        f"{1e3 * call.prefill_gaps_s:.1f} ms, before and after all kernels "
        f"{1e3 * call.outside_s:.1f} ms",
    ]
