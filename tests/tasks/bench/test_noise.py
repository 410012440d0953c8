"""What the scatter of rounds explains, and what it does not."""

from __future__ import annotations

import random
from statistics import median

import pytest

from flexinfer.tasks.bench.compare.noise import noise_pct, round_rates


def test_rates_are_of_the_rounds_that_count() -> None:
    row = {
        "round_tokens": [10, 8, 10],
        "wall_times_s": [1.0, 1.0, 2.0],
        "flagged_rounds": {"2": "x"},
    }
    assert round_rates(row) == [10.0, 5.0]
    assert round_rates({"decode_tps_median": 10.0}) == []
    assert round_rates({"round_tokens": [1], "wall_times_s": []}) == []


def test_single_rounds_tell_no_noise() -> None:
    assert noise_pct([10.0], [10.0, 11.0]) is None
    assert noise_pct([10.0, 11.0], []) is None


def test_equal_rounds_have_none() -> None:
    assert noise_pct([10.0] * 5, [9.0] * 5) == 0.0


def test_one_interrupted_round_does_not_hide_a_loss() -> None:
    calm = [100.0, 100.5, 99.5, 100.2, 99.8]
    with_outlier = [*calm[:4], 20.0]
    quiet, loud = noise_pct(calm, calm), noise_pct(with_outlier, calm)
    assert quiet is not None
    assert loud is not None
    assert loud < 2 * quiet


@pytest.mark.parametrize(("rounds", "most"), [(3, 0.15), (5, 0.11), (9, 0.08), (25, 0.07)])
def test_it_holds_what_chance_does(rounds: int, most: float) -> None:
    """Of runs that differ by chance alone few are beyond: one in twenty where rounds are many."""
    draw = random.Random(0)
    beyond = 0
    for _ in range(2000):
        now, before = ([draw.gauss(100, 3) for _ in range(rounds)] for _ in range(2))
        noise = noise_pct(now, before)
        assert noise is not None
        beyond += abs(100 * (median(now) / median(before) - 1)) > noise
    assert 0.03 < beyond / 2000 < most
