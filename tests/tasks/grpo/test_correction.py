"""The gap and the weights on numbers done by hand: what is masked counts for nothing."""

from __future__ import annotations

import math

import pytest
import torch

from flexinfer.tasks.grpo.training.correction import Correction, gap_between

TRAINER = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]])
ROLLOUT = torch.tensor([[-1.5, -2.0, 0.0], [-2.0, 0.0, 0.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_padding_is_no_gap() -> None:
    gap = gap_between(TRAINER, ROLLOUT, MASK).read()
    assert gap is not None
    assert (gap.tokens, gap.mean, gap.largest) == (3, 0.5, 1.0)
    assert gap.ratio_min == pytest.approx(math.exp(-1.0))
    assert gap.ratio_max == pytest.approx(math.exp(0.5))
    assert gap_between(TRAINER, ROLLOUT, torch.zeros_like(MASK)).read() is None


def test_gaps_of_parts_add_up() -> None:
    """One of the parts may have no token that counts."""
    masks = [MASK * torch.tensor(rows)[:, None] for rows in ([1, 0], [0, 0], [0, 1])]
    first, none, last = (gap_between(TRAINER, ROLLOUT, mask) for mask in masks)
    whole = gap_between(TRAINER, ROLLOUT, MASK).read()
    assert (first + none + last).read() == pytest.approx(whole)
    parts = first.read(), last.read()
    assert parts[0] is not None
    assert parts[1] is not None
    assert parts[0] + parts[1] == pytest.approx(whole)


def test_measuring_copies_nothing_to_the_host() -> None:
    """The meta device has no values: what reads one raises."""
    given = (tensor.to("meta") for tensor in (TRAINER, ROLLOUT, MASK))
    gap = gap_between(*given)
    assert (gap + gap).sums_3.shape == (3,)


def test_a_sequence_is_weighted_by_its_own_tokens() -> None:
    weights = Correction("sequence_truncate", 10.0).weights(TRAINER, ROLLOUT, MASK)
    assert weights is not None
    assert weights.flatten().tolist() == pytest.approx([math.exp(0.5), math.exp(-1.0)])
