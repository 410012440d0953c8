"""Which kernel belongs to which operation, and what it takes a layer; no device."""

from __future__ import annotations

from flexinfer.tasks.bench.profile.kernels import device_launches, host_launches, top_kernels
from flexinfer.tasks.bench.profile.record import OTHER, Op
from flexinfer.tasks.bench.profile.step import Timed
from flexinfer.tasks.bench.profile.timeline import Span
from flexinfer.tasks.bench.profile.traced import Played, Traced

PRODUCT = Op("o product", "4x8 -> 8", layered=True)
HEAD = Op("head", "4x8 -> 99")


def played(*kernels: tuple[str, float]) -> Played:
    """A step of these kernels."""
    names, times = zip(*kernels, strict=True)
    return Played(names, times, sum(times), 0.0, 0.0)


STEP = played(("void gemm<1>(x)", 3.0), ("split", 1.0), ("void gemm<1>(y)", 5.0), ("gemm", 8.0))
TIMED = (Timed(PRODUCT, 2, 4.0), Timed(PRODUCT, 1, 5.0), Timed(HEAD, 1, 8.0))


def test_kernels_are_given_to_the_operations_in_order() -> None:
    found = device_launches(Traced(TIMED, STEP))
    assert [(one.name, one.op.name, one.us) for one in found] == [
        ("gemm", "o product", 3.0),
        ("split", "o product", 1.0),
        ("gemm", "o product", 5.0),
        ("gemm", "head", 8.0),
    ]


def test_the_longest_come_first_with_their_share_a_layer() -> None:
    first, second, third = top_kernels(device_launches(Traced(TIMED, STEP)), layers=2)
    assert (first.name, first.operation, first.us_step) == ("gemm", "o product", 8.0)
    assert (first.calls_step, first.calls_layer, first.us_each, first.us_layer) == (
        2,
        1.0,
        4.0,
        4.0,
    )
    assert (second.operation, second.calls_layer, second.us_layer) == ("head", None, None)
    assert (third.name, third.us_layer) == ("split", 0.5)
    assert first.share_pct + second.share_pct + third.share_pct == 100
    assert len(top_kernels(device_launches(Traced(TIMED, STEP)), layers=2, most=1)) == 1


def test_operations_that_do_not_match_are_not_guessed() -> None:
    found = device_launches(Traced(TIMED[:2], STEP))
    assert {one.op for one in found} == {OTHER}
    assert [one.us for one in found] == [3.0, 1.0, 5.0, 8.0]


def test_a_compiled_step_names_no_operation() -> None:
    timed = tuple(
        Timed(Op(name, ""), 1, us) for name, us in zip(STEP.names, STEP.own_us, strict=True)
    )
    assert {one.op.name for one in device_launches(Traced(timed, STEP))} == {""}


def test_without_a_trace_there_are_none() -> None:
    assert device_launches(Traced(TIMED)) == []


def test_on_a_host_the_outermost_operators_count_and_the_middle_of_steps() -> None:
    def step(scale: int) -> list[tuple[Op, list[Span]]]:
        inner = Span("aten::addmm", 1_000, 2_000, 0)
        return [
            (PRODUCT, [Span("aten::linear", 0, 3_000 * scale, 0), inner]),
            (OTHER, []),
            (HEAD, [Span("aten::mm", 9_000_000, 9_001_000, 0)]),
        ]

    found = host_launches([step(1), step(100), step(2)])
    assert [(one.name, one.op.name, one.us) for one in found] == [
        ("aten::linear", "o product", 6.0),
        ("aten::mm", "head", 1.0),
    ]


def test_steps_that_differ_are_not_mixed() -> None:
    def step(name: str, us: int) -> list[tuple[Op, list[Span]]]:
        return [(HEAD, [Span(name, 0, 1_000 * us, 0)])]

    (one,) = host_launches([step("a", 1), step("b", 5), step("b", 7)])
    assert (one.name, one.us) == ("b", 6.0)
