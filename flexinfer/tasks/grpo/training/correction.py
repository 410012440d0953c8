"""Importance-sampling correction: the gap between sampler and trainer, and weights for it.

A rollout is drawn from q (the sampler), the gradient is taken for p (the trainer): weights p / q
make the estimate one of p again. Truncated: Espeholt et al. 2018 (IMPALA, V-trace); masked: Liu et
al. 2025 (IcePop, sequence masks). Shapes: B completions of up to T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.config import IsCorrection

GAP = "sampling/sampling_logp_difference"
"""TRL's own name in its logs, and its meaning: |trainer - rollout| of each token."""
RATIO = "sampling/token_importance_ratio"
"""exp(trainer - rollout) of each token; TRL's `importance_sampling_ratio` is after the cap."""


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


class GapSums(NamedTuple):
    """How far a trainer's log-probabilities are from its rollout's, not yet off their device.

    `sums_3` are of 1, |trainer - rollout| and the ratios exp(trainer - rollout), `most_3` the
    largest of |trainer - rollout|, of the negated ratios and of the ratios; both fp64, minus
    infinity where no token counts. So those of micro-batches and of processes add up.
    """

    sums_3: Tensor
    most_3: Tensor

    def __add__(self, other: object) -> GapSums:
        """Return those over the tokens of both."""
        assert isinstance(other, GapSums)
        return GapSums(self.sums_3 + other.sums_3, torch.maximum(self.most_3, other.most_3))

    def of_all(self, gather: Callable[[Tensor], Tensor]) -> GapSums:
        """Return those over the tokens of all N processes: `gather` makes [N, 6] of each's [1, 6].

        Every process has to ask; none waits for its device.
        """
        every_N6 = gather(torch.cat(self)[None])
        return GapSums(every_N6[:, :3].sum(0), every_N6[:, 3:].amax(0))

    def read(self) -> dict[str, float]:
        """Return them as metrics, by name; none where no token counts. A copy to the host."""
        tokens, total, ratio_total, largest, ratio_least, ratio_max = torch.cat(self).tolist()
        if not tokens:
            return {}
        return {
            f"{GAP}/mean": total / tokens,
            f"{GAP}/max": largest,
            f"{RATIO}/min": -ratio_least,
            f"{RATIO}/mean": ratio_total / tokens,
            f"{RATIO}/max": ratio_max,
        }


def gap_between(trainer_BT: Tensor, rollout_BT: Tensor, mask_BT: Tensor) -> GapSums:
    """Measure the gap over the tokens that count, without a word to the host."""
    counts_BT = mask_BT.bool()
    difference_BT = (trainer_BT - rollout_BT).double().masked_fill(~counts_BT, 0.0)
    away_BT, ratio_BT = difference_BT.abs(), difference_BT.exp()
    sums_3BT = torch.stack((counts_BT.double(), away_BT, ratio_BT * counts_BT))
    most_3BT = torch.stack((away_BT, -ratio_BT, ratio_BT)).masked_fill(~counts_BT, -torch.inf)
    return GapSums(sums_3BT.sum((-2, -1)), most_3BT.amax((-2, -1)))
