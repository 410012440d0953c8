"""Busy time and gaps, on events made by hand."""

from __future__ import annotations

import pytest

from flexinfer.tasks.bench.profile.call import CallGaps, call_figures, sort_gaps
from flexinfer.tasks.bench.profile.timeline import Span, lay, short_name, split_at


def spans(*given: tuple[int, int, int]) -> list[Span]:
    """Make spans from (start, end, launch)."""
    return [Span("kernel", *one) for one in given]


@pytest.mark.parametrize(
    ("given", "own", "gap"),
    [
        ([], (), ()),
        ([(5, 9, 1)], (4,), (0,)),
        ([(0, 10, 1), (12, 15, 2)], (10, 3), (0, 2)),
        ([(0, 10, 1), (10, 15, 2)], (10, 5), (0, 0)),
        ([(0, 10, 1), (4, 15, 2)], (10, 5), (0, 0)),
        ([(0, 10, 1), (2, 8, 2), (14, 16, 3)], (10, 0, 2), (0, 0, 4)),
        ([(0, 10, 1), (2, 8, 2), (9, 16, 3)], (10, 0, 6), (0, 0, 0)),
    ],
    ids=["none", "one", "apart", "touching", "overlapping", "within", "within and on"],
)
def test_what_each_span_adds(given: list[tuple[int, int, int]], own: object, gap: object) -> None:
    laid = lay(spans(*given))
    assert laid == (own, gap)
    covered = {at for start, end, _ in given for at in range(start, end)}
    assert laid.busy == len(covered)


GRAPHS = spans(
    (0, 4, 1), (7, 9, 2), (10, 14, 3), (15, 19, 3), (25, 30, 4), (31, 33, 4), (40, 41, 5)
)
"""Two single launches, two graphs of two kernels, one single launch."""


def test_whose_gaps_are() -> None:
    assert sort_gaps(GRAPHS, lay(GRAPHS)) == CallGaps([1, 1], [6, 7], [3, 1])


def test_without_a_graph_all_gaps_are_between_launches() -> None:
    apart = [span._replace(launch=i) for i, span in enumerate(GRAPHS)]
    assert sort_gaps(apart, lay(apart)) == CallGaps([], [3, 1, 1, 6, 1, 7], [])


def test_the_figures_of_a_call_add_up_to_its_wall() -> None:
    found = call_figures(GRAPHS, 50e-9, 45e-9)
    assert found.busy_share == pytest.approx(22 / 50)
    assert found.fed_share == pytest.approx(24 / 50)
    assert found.outside_s == pytest.approx(9e-9)
    assert found.longest_between_gap_us == pytest.approx(7e-3)
    assert found.longest_in_step_gap_us == pytest.approx(1e-3)
    gaps = found.in_step_gaps_s + found.between_gaps_s + found.prefill_gaps_s
    assert found.busy_s + gaps + found.outside_s == pytest.approx(found.wall_s)
    assert (found.kernels, found.untraced_wall_s) == (7, 45e-9)


def test_marks_split_a_trace() -> None:
    names = ["stray", "a::spin_kernel(long)", "x", "y", "a::spin_kernel(long)", "spin_kernel", "z"]
    made = [Span(name, i, i + 1, i) for i, name in enumerate(names)]
    parts = [[span.name for span in part] for part in split_at(made, "spin_kernel")]
    assert parts == [["x", "y"], [], ["z"]]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("decode_kernel", "decode_kernel"),
        ("void at::native::(anonymous namespace)::spin<float, 4>(int, long)", "spin"),
        ("void cutlass::Kernel2<cutlass::x>(cutlass::Params)", "Kernel2"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
