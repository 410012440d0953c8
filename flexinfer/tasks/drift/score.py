"""What the trainer says of rollouts, and the yardstick of how far a right rollout may be off it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flexinfer.engine.memory import memory_told
from flexinfer.tasks.drift.gaps import Divergence, Gap, Rollout, first_divergence, gap
from flexinfer.tasks.drift.limits import Limits, limits
from flexinfer.tasks.reference.forced import teacher_forced
from flexinfer.tasks.reference.samples import Reference
from flexinfer.tasks.reference.trainer import merged_over, peft_over, scaled_by_peft
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.choice import AdapterSource

SCORING = ("the trainer's log-probabilities", "lower --n-prompts or --max-new-tokens")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """A rollout against its trainer.

    `gap` is what was measured, `yardstick` what a perfect rollout would show (see limits),
    `divergence` the first token beyond the limit. `reference` scores the rollout's own weights a
    dtype wider: margins are read there. `own` is how far the working dtype alone is off it.
    """

    gap: Gap
    yardstick: Gap
    own: Gap
    limits: Limits
    divergence: Divergence | None
    reference: Reference

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain containers."""
        return {
            "gap": asdict(self.gap),
            "yardstick": asdict(self.yardstick),
            "limits": self.limits._asdict(),
            "first_divergence": self.divergence and asdict(self.divergence),
        }


def score(
    module: Any, rollout: Rollout, adapter: Adapter, source: AdapterSource, *, merged: bool
) -> Scores:
    """Let the trainer score a rollout, one prompt at a time; raises NotEnoughMemory.

    `merged` says that the rollout's weights are the merged ones.
    """
    with memory_told(*SCORING):
        with peft_over(module, adapter, source):
            trained = scaled_by_peft(module, adapter)
            trainer = reference = teacher_forced(module, rollout)
        if merged:
            with merged_over(module, trained):
                reference = teacher_forced(module, rollout)
    exact = [[score.logprob for score in row] for row in reference.scores]
    found = gap([sample.logprobs for sample in rollout], trainer.own_logprobs)
    yardstick = gap(exact, trainer.own_logprobs)
    allowed = limits(
        trainer.dtype, yardstick.mean_gap, yardstick.max_gap, yardstick.k3, reference.noise
    )
    return Scores(
        gap=found,
        yardstick=yardstick,
        own=gap(exact, reference.own_logprobs),
        limits=allowed,
        divergence=first_divergence(rollout, trainer.own_logprobs, allowed.max_gap),
        reference=reference,
    )
