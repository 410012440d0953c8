"""Refills go together, wait no longer than they are worth, and never strand a sequence."""

from __future__ import annotations

import random

import pytest

from flexinfer.core.refill import STEPS, Refill
from tests.core.simulation import Rollout


@pytest.mark.parametrize(
    ("free", "waiting", "due"), [(8, 100, True), (7, 100, False), (3, 3, True), (1, 2, False)]
)
def test_an_eighth_of_the_slots_or_all_that_waits(free: int, waiting: int, due: bool) -> None:
    assert Refill(64).due(free, waiting) is due


def test_a_slot_idles_no_longer_than_a_refill_takes() -> None:
    refill = Refill(64)
    steps = 1
    while not refill.due(1, 9):
        steps += 1
    assert steps == STEPS * 64
    refill.done()
    assert not refill.due(7, 9)


def test_few_slots_are_filled_at_once() -> None:
    assert all(Refill(slots).due(1, 9) for slots in range(1, 9))


def test_who_has_waited_and_finds_no_page_does_not_wait_again() -> None:
    engine = Rollout(n_pages=25, page_size=512, n_slots=24, max_seq_length=1024, budget=2048)
    running = [engine.add(1, [200], 200)[0] for _ in range(23)]
    waiting = [engine.add(600, [9], 9)[0] for _ in range(3)]
    for _ in range(STEPS * 24 + 1):
        step = engine.launch()
        assert step is not None
        assert not step.chunks, "there is but one page"
        engine.read()
    engine.abort(running[0])
    step = engine.launch()
    assert step is not None
    assert [chunk.sequence for chunk in step.chunks] == waiting[:1]


def cost(lengths: list[int]) -> int:
    """Return the cost of a rollout in decode steps."""
    engine = Rollout(n_pages=400, page_size=4, n_slots=16, max_seq_length=48, budget=64)
    for length in lengths:
        engine.add(4, [length], length)
    steps = engine.drain()
    return sum(STEPS if step.chunks else 1 for step in steps)


def test_mixed_lengths_cost_less_than_one_refill_a_free_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(0)
    lengths = [rng.randint(4, 40) for _ in range(96)]
    grouped = cost(lengths)
    monkeypatch.setattr(Refill, "due", lambda *_: True)
    assert grouped < 0.85 * cost(lengths)
