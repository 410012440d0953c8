"""The interval of a share: its ends solve the equation that Wilson started from."""

from __future__ import annotations

import pytest

from flexinfer.tasks.grpo.records.interval import Z, margin


@pytest.mark.parametrize("count", [1, 10, 200, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.645, 1.0])
def test_its_ends_are_where_the_score_test_turns(share: float, count: int) -> None:
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    for end in (centre - margin(share, count), centre + margin(share, count)):
        assert (share - end) ** 2 == pytest.approx(Z**2 * end * (1 - end) / count, abs=1e-12)


def test_it_is_the_plain_one_for_many() -> None:
    assert margin(0.645, 10**6) == pytest.approx(Z * (0.645 * 0.355 / 10**6) ** 0.5, rel=1e-4)
    assert round(100 * margin(0.645, 200), 1) == 6.6
