"""The gap and the weights on numbers done by hand: what is masked counts for nothing."""

from __future__ import annotations

import math

import pytest
import torch

from flexinfer.tasks.grpo.training.correction import Correction, GapSums, gap_between

TRAINER = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]])
ROLLOUT = torch.tensor([[-1.5, -2.0, 0.0], [-2.0, 0.0, 0.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_padding_is_no_gap() -> None:
    gap = gap_between(TRAINER, ROLLOUT, MASK).read()
    assert gap == pytest.approx(
        {
            "sampling/sampling_logp_difference/mean": 0.5,
            "sampling/sampling_logp_difference/max": 1.0,
            "sampling/token_importance_ratio/min": math.exp(-1.0),
            "sampling/token_importance_ratio/mean": (math.exp(0.5) + 1 + math.exp(-1.0)) / 3,
            "sampling/token_importance_ratio/max": math.exp(0.5),
        }
    )
    assert gap_between(TRAINER, ROLLOUT, torch.zeros_like(MASK)).read() == {}


@pytest.fixture
def thirds() -> list[GapSums]:
    """Return the gaps of three parts of the same tokens; one of them has none that counts."""
    masks = [MASK * torch.tensor(rows)[:, None] for rows in ([1, 0], [0, 0], [0, 1])]
    return [gap_between(TRAINER, ROLLOUT, mask) for mask in masks]


def test_gaps_of_micro_batches_add_up(thirds: list[GapSums]) -> None:
    first, none, last = thirds
    whole = gap_between(TRAINER, ROLLOUT, MASK).read()
    assert (first + none + last).read() == pytest.approx(whole)


def test_gaps_of_processes_add_up(thirds: list[GapSums]) -> None:
    """As accelerate gathers them: the rows of all, one after the other."""
    own, *others = thirds
    rows = [torch.cat(other)[None] for other in others]
    whole = gap_between(TRAINER, ROLLOUT, MASK).read()
    assert own.of_all(lambda row_16: torch.cat((row_16, *rows))).read() == pytest.approx(whole)
    assert own.of_all(lambda row_16: row_16).read() == own.read() != whole


def test_measuring_copies_nothing_to_the_host() -> None:
    """The meta device has no values: what reads one raises."""
    given = (tensor.to("meta") for tensor in (TRAINER, ROLLOUT, MASK))
    gap = gap_between(*given)
    assert (gap + gap).sums_3.shape == (3,)


def test_a_sequence_is_weighted_by_its_own_tokens() -> None:
    weights = Correction("sequence_truncate", 10.0).weights(TRAINER, ROLLOUT, MASK)
    assert weights is not None
    assert weights.flatten().tolist() == pytest.approx([math.exp(0.5), math.exp(-1.0)])
