"""Figures of decoding where rounds end early: tokens and seconds are of one round each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flexinfer.tasks.roofline import StepCost
from tests.support.fake_backend import fake_rig, run, small

FIRST_ROUND = 4
"""After the warm-up and three calls of one token, each a second long."""


def ending_early(tokens: Mapping[int, int], walls: Mapping[int, float], **given: Any) -> Any:
    """A row of one prompt, whose rounds have those tokens and seconds."""
    rig, _ = fake_rig(
        seconds=lambda call, count, new: walls.get(call - FIRST_ROUND, 1.0),
        tamper=lambda call, outs: [
            replace(
                out,
                outputs=(
                    replace(out.outputs[0], token_ids=(7,) * tokens.get(call - FIRST_ROUND, 1)),
                ),
            )
            for out in outs
        ],
        **given,
    )
    config = small(n_rounds=len(tokens), ignore_eos=False, n_prompts=1, max_new_tokens=32)
    return run(rig, config).results[0]


def test_a_round_that_ends_early_is_held_against_its_own_time() -> None:
    """Every step takes a tenth of a second and must read for half of that, in each round."""
    row = ending_early(
        {0: 3, 1: 21, 2: 11}, {0: 1.2, 1: 3.0, 2: 2.0}, cost=StepCost(500, ()), bandwidth=10_000.0
    )
    assert row.round_tokens == (3, 21, 11)
    assert row.decode_only_tps == pytest.approx(10.0)
    assert row.roofline_pct == pytest.approx(50.0)
    assert row.roofline.decode_floor_s == pytest.approx(0.5), "of the median round, not the first"


def test_tokens_and_walls_of_decoding_are_of_one_round() -> None:
    """Medians of either alone are 10 tokens and a second, which no round had."""
    row = ending_early({0: 21, 1: 11, 2: 2}, {0: 2.0, 1: 11.0, 2: 1.5})
    assert row.decode_s == pytest.approx(1.0)
    assert row.decode_only_tps == pytest.approx(2.0)


def test_a_round_without_decode_steps_has_no_rate() -> None:
    row = ending_early({0: 1, 1: 11, 2: 6}, {0: 1.0, 1: 2.0, 2: 1.5})
    assert row.decode_only_tps == pytest.approx(10.0)
    none = ending_early({0: 1, 1: 1, 2: 11}, {0: 1.0, 1: 1.0, 2: 2.0})
    assert (none.prefill_s, none.decode_s, none.decode_only_tps) == (1.0, None, None)
