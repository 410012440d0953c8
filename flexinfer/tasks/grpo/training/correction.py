"""Importance-sampling correction: the gap between sampler and trainer, and weights for it.

A rollout is drawn from q (the sampler), the gradient is taken for p (the trainer): weights p / q
make the estimate one of p again. Truncated: Espeholt et al. 2018 (IMPALA, V-trace); masked: Liu et
al. 2025 (IcePop, sequence masks). Shapes: B completions of up to T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.config import IsCorrection

LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo")
"""TRL's losses that an importance weight of the advantages corrects; vespo's takes it otherwise."""


@dataclass(frozen=True)
class Correction:
    """How rollouts are weighted; `cap` is the largest weight (truncate) or the largest kept (mask).

    `none` weights nothing; the gap is measured all the same.
    """

    mode: IsCorrection = "token_truncate"
    cap: float = 3.0

    def weights(self, trainer_BT: Tensor, rollout_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
        """Return exp(trainer - rollout), capped: [B, T], of sequences [B, 1], or None for none.

        Log-probabilities are natural, of the sampled tokens; the mask is 1 on those that count.
        """
        if self.mode == "none":
            return None
        gap = (trainer_BT - rollout_BT) * mask_BT
        if self.mode.startswith("sequence"):
            gap = gap.sum(-1, keepdim=True)
        weights = gap.exp()
        if self.mode.endswith("truncate"):
            return weights.clamp(max=self.cap)
        return weights.masked_fill(weights > self.cap, 0.0)


class Gap(NamedTuple):
    """How far the trainer's log-probabilities are from the rollout's, over `tokens` of them.

    Sums and extremes, so that the micro-batches of a step add up: |trainer - rollout| and the
    ratios exp(trainer - rollout).
    """

    tokens: int
    total: float
    largest: float
    ratio_min: float
    ratio_total: float
    ratio_max: float

    @property
    def mean(self) -> float:
        """Mean |trainer - rollout|."""
        return self.total / self.tokens

    @property
    def ratio_mean(self) -> float:
        """Mean ratio."""
        return self.ratio_total / self.tokens

    def __add__(self, other: object) -> Gap:
        """Return the gap over the tokens of both."""
        assert isinstance(other, Gap)
        return Gap(
            self.tokens + other.tokens,
            self.total + other.total,
            max(self.largest, other.largest),
            min(self.ratio_min, other.ratio_min),
            self.ratio_total + other.ratio_total,
            max(self.ratio_max, other.ratio_max),
        )


class GapSums(NamedTuple):
    """A Gap that has not left its device: reading it is a copy to the host, which waits.

    `sums_3` are of 1, |difference| and the ratios, `most_3` the largest of |difference|, of the
    negated ratios and of the ratios; both fp64, minus infinity where no token counts.
    """

    sums_3: Tensor
    most_3: Tensor

    def __add__(self, other: object) -> GapSums:
        """Return those over the tokens of both."""
        assert isinstance(other, GapSums)
        return GapSums(self.sums_3 + other.sums_3, torch.maximum(self.most_3, other.most_3))

    def read(self) -> Gap | None:
        """Return the gap on the host; None where no token counts."""
        tokens, total, ratio_total, *most = torch.cat(self).tolist()
        if not tokens:
            return None
        largest, ratio_least, ratio_max = most
        return Gap(int(tokens), total, largest, -ratio_least, ratio_total, ratio_max)


def gap_between(trainer_BT: Tensor, rollout_BT: Tensor, mask_BT: Tensor) -> GapSums:
    """Measure the gap over the tokens that count, without a word to the host."""
    counts_BT = mask_BT.bool()
    difference_BT = (trainer_BT - rollout_BT).double().masked_fill(~counts_BT, 0.0)
    away_BT, ratio_BT = difference_BT.abs(), difference_BT.exp()
    sums_3BT = torch.stack((counts_BT.double(), away_BT, ratio_BT * counts_BT))
    most_3BT = torch.stack((away_BT, -ratio_BT, ratio_BT)).masked_fill(~counts_BT, -torch.inf)
    return GapSums(sums_3BT.sum((-2, -1)), most_3BT.amax((-2, -1)))
