"""`length`: shorter is better."""

from __future__ import annotations

from flexinfer.tasks.grpo.rewards.sample import Sample

TOKENS_PER_POINT = 1000


def length(sample: Sample) -> float:
    """Take one point for every thousand tokens of the completion, in proportion."""
    return -sample.tokens / TOKENS_PER_POINT
