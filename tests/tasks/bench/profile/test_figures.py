"""From traces made by hand to rows, the way to the floor, and text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.bench.profile.call import call_figures
from flexinfer.tasks.bench.profile.figures import Floor, kernels_per_layer, op_rows, over_floor
from flexinfer.tasks.bench.profile.record import OTHER, Op
from flexinfer.tasks.bench.profile.result import OpRow, Profile, StepFigures
from flexinfer.tasks.bench.profile.step import Timed
from flexinfer.tasks.bench.profile.table import HEAD, profile_markdown, profile_table
from flexinfer.tasks.bench.profile.timeline import Span
from flexinfer.tasks.bench.profile.traced import assign, by_kernel, played

GEMM, NORM = Op("product", "4x8 -> 8", 3000, 1000, True), Op("norm", "4x8", 600, 400, True)
HEAD_OP = Op("head", "4x8 -> 90", 9000, 0)
MARKED = [
    (OTHER, []),
    (GEMM, [Span("gemm", 0, 3000, 1), Span("reduce", 3100, 4000, 2)]),
    (NORM, [Span("norm", 5000, 5900, 3)]),
    (OTHER, [Span("copy", 6000, 6100, 4)]),
    (GEMM, [Span("gemm", 7000, 9900, 5), Span("reduce", 9950, 11000, 6)]),
    (HEAD_OP, [Span("gemm", 12000, 18000, 7)]),
]
NAMES = ["gemm", "reduce", "norm", "copy", "gemm", "reduce", "gemm"]
TAKES = [2000, 1000, 500, 100, 2200, 800, 5000]
"""Nanoseconds of the kernels above in a played step; each starts 50 before the last one's end."""


def steps(count: int, names: list[str] = NAMES, pause: int = 300) -> list[Span]:
    """Play steps: 100 ns idle before the third kernel, `pause` between steps; the first is slow."""
    spans, now = [], 0
    for step in range(count):
        for at, (name, takes) in enumerate(zip(names, TAKES, strict=False)):
            now += 100 if at == 2 else 0
            early = 50 if at not in (0, 2) else 0
            end = now + takes * (9 if step == 0 else 1)
            spans.append(Span(name, now - early, end, step))
            now = end
        now += pause
    return spans


def test_a_mean_step_of_those_played() -> None:
    found = played(steps(4), 3)
    assert list(found.names) == NAMES
    assert list(found.own_us) == [takes / 1e3 for takes in TAKES]
    assert found.step_us == pytest.approx((sum(TAKES) + 100 + 300) / 1e3)
    assert found.gaps_us == pytest.approx(0.1)
    assert found.longest_gap_us == pytest.approx(0.1)
    assert played(steps(2), 1).own_us == found.own_us
    with pytest.raises(EnvironmentUnfit, match="saw 27 kernels in 4 steps"):
        played(steps(4)[:-1], 3)


@pytest.mark.parametrize(("at", "within"), [(15, True), (16, False), (14, False)])
def test_a_step_that_another_process_interrupts_does_not_count(at: int, within: bool) -> None:
    """A slice of 2 ms within kernel `at` of 28, between kernels, between steps."""
    spans, late = steps(4), 2_000_000
    interrupted = [
        span._replace(
            start=span.start + late * (place + (not within) > at),
            end=span.end + late * (place >= at),
        )
        for place, span in enumerate(spans)
    ]
    calm = played(spans, 3)
    assert played(interrupted, 3)._replace(longest_gap_us=calm.longest_gap_us) == calm


def test_operations_have_the_times_of_their_kernels() -> None:
    timed, _, remark = assign(MARKED, played(steps(4), 3))
    assert timed == (
        Timed(GEMM, 2, 3.0), Timed(NORM, 1, 0.5), Timed(OTHER, 1, 0.1), Timed(GEMM, 2, 3.0),
        Timed(HEAD_OP, 1, 5.0),
    )  # fmt: skip
    assert remark is None


def test_other_kernels_in_a_played_step_are_said() -> None:
    assert assign(MARKED, played(steps(3, ["gemv", *NAMES[1:]]), 2)).remark == (
        "1 of the 7 kernels of a step differs from those of operations launched one by one, which "
        "tell whose kernel is whose: its operation is found by place alone"
    )
    two = assign(MARKED, played(steps(3, ["gemv", "gemv", *NAMES[2:]]), 2)).remark
    assert str(two).startswith("2 of the 7 kernels of a step differ from those")
    assert str(two).endswith("their operation is found by place alone")
    timed, _, remark = assign(MARKED, played(steps(3, NAMES[:-1]), 2))
    assert [one.us for one in timed] == [3.9, 0.9, 0.1, 3.95, 6.0]
    assert remark is not None
    assert "has 6 kernels, single launches 7" in remark


def test_compiled_blocks_are_shown_by_kernel() -> None:
    rows = op_rows(by_kernel(played(steps(4), 3)), None)
    assert [(row.name, row.calls, row.kernels) for row in rows] == [
        ("gemm", 3, 3), ("reduce", 2, 2), ("norm", 1, 1), ("copy", 1, 1),
    ]  # fmt: skip
    assert sum(row.us_step for row in rows) == pytest.approx(sum(TAKES) / 1e3)
    assert kernels_per_layer(by_kernel(played(steps(4), 3)), 2) is None


FLOOR = Floor(step_bytes=10_000, bandwidth=4e9)
TIMED = assign(MARKED, played(steps(4), 3)).timed


def test_rows_group_operations_over_layers() -> None:
    product, norm, head, other = op_rows(TIMED, FLOOR)
    assert product == OpRow(
        name="product",
        shape="4x8 -> 8",
        calls=2,
        kernels=4,
        us_each=3.0,
        us_step=6.0,
        share_pct=pytest.approx(100 * 6.0 / 11.6),
        bytes_step=8000,
        gb_per_s=pytest.approx(8000 / 6.0 / 1e3),
        floor_us=pytest.approx(2.0),
        over_us=pytest.approx(4.0),
    )
    assert (norm.name, head.name, other.name) == ("norm", "head", "other")
    assert (other.bytes_step, other.gb_per_s, other.over_us) == (None, None, None)
    assert kernels_per_layer(TIMED, 2) == 2.5
    assert op_rows(TIMED, None)[0].floor_us is None


def test_what_is_over_the_floor_adds_up() -> None:
    found = over_floor(12.5, op_rows(TIMED, FLOOR), FLOOR)
    assert found["floor_us"] == pytest.approx(2.5)
    assert found["floor_pct"] == pytest.approx(20.0)
    gaps = 12.5 - 11.6
    parts = found["ops_over_us"] + found["beyond_floor_us"] + gaps
    assert parts == pytest.approx(found["over_floor_us"])
    assert found["beyond_floor_us"] == pytest.approx((18_000 - 10_000) / 4e3)
    assert over_floor(12.5, op_rows(TIMED, None), None) == {}


def profile() -> Profile:
    rows = op_rows(TIMED, FLOOR)
    step = StepFigures(
        rows=4, mean_context=417, steps=3, graph=True, step_us=12.5, busy_us=11.6, gaps_us=0.9,
        kernels=7, kernels_per_layer=2.5, traced_step_us=13.0, traced_gaps_us=1.1,
        traced_longest_gap_us=0.3, **over_floor(12.5, rows, FLOOR),
    )  # fmt: skip
    call = call_figures([Span("a", 0, 97, 1), Span("b", 98, 99, 1)], 100e-9, None)
    return Profile(timed_by="device", ops=rows, step=step, call=call, remarks=("so it is",))


def words_of(line: str) -> str:
    return " ".join(line.split())


def test_the_table() -> None:
    lines = profile_table(profile())
    assert words_of(lines[0]) == " ".join(HEAD)
    assert words_of(lines[2]) == "product 4x8 -> 8 2 4 3.00 6.0 51.7 0.01 1 2.0 4.0"
    assert words_of(lines[5]) == "other 1 1 0.10 0.1 0.9 - - - -"
    assert len({len(line) for line in lines[:6]}) == 1
    words = "\n".join(lines[6:])
    assert (
        "4 rows at context 417 in a CUDA graph: 12.5 us, of which operations 11.6 and gaps 0.9"
        in words
    )
    assert "7 kernels a step, 2.5 a layer" in words
    assert "floor 2.5 us (20.0 % of the step); over it 10.0 us" in words
    assert "busy 98.00 %, with the gaps inside steps 99.00 %" in words
    assert words.endswith("so it is")


def test_markdown_has_the_same_rows_and_words() -> None:
    lines = profile_markdown(profile())
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 4
    assert len({line.count("|") for line in table}) == 1
    words = profile_table(profile())[7:]
    assert [line.removeprefix("- ") for line in lines[7:]] == words


def test_without_a_device_the_figures_of_one_are_left_out() -> None:
    step = StepFigures(rows=4, mean_context=9, steps=3, graph=False, step_us=12.5, busy_us=11.6)
    text = "\n".join(profile_table(replace(profile(), step=step, call=None)))
    assert "without a CUDA graph: 12.5 us; its operations add up to 11.6" in text
    assert "floor 2" not in text
    assert "profiler" not in text
