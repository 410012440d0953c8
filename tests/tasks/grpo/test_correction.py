"""The gap and the weights on numbers done by hand: what is masked counts for nothing."""

from __future__ import annotations

import math

import pytest
import torch

from flexinfer.tasks.grpo.correction import Correction, gap_between

TRAINER = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]])
ROLLOUT = torch.tensor([[-1.5, -2.0, 0.0], [-2.0, 0.0, 0.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_padding_is_no_gap() -> None:
    gap = gap_between(TRAINER, ROLLOUT, MASK)
    assert gap is not None
    assert (gap.tokens, gap.mean, gap.largest) == (3, 0.5, 1.0)
    assert gap.ratio_min == pytest.approx(math.exp(-1.0))
    assert gap.ratio_max == pytest.approx(math.exp(0.5))
    assert gap_between(TRAINER, ROLLOUT, torch.zeros_like(MASK)) is None


def test_gaps_of_parts_add_up() -> None:
    parts = [gap_between(TRAINER[i : i + 1], ROLLOUT[i : i + 1], MASK[i : i + 1]) for i in (0, 1)]
    assert parts[0] is not None
    assert parts[1] is not None
    assert parts[0] + parts[1] == pytest.approx(gap_between(TRAINER, ROLLOUT, MASK))


def test_a_sequence_is_weighted_by_its_own_tokens() -> None:
    weights = Correction("sequence_truncate", 10.0).weights(TRAINER, ROLLOUT, MASK)
    assert weights is not None
    assert weights.flatten().tolist() == pytest.approx([math.exp(0.5), math.exp(-1.0)])
