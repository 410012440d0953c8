"""`format-exact` and `format-approximate`: is a completion laid out as the markers want it?"""

from __future__ import annotations

from flexinfer.tasks.grpo.rewards.sample import Sample
from flexinfer.tasks.grpo.rewards.sections import MARKERS, exact_solution


def format_exact(sample: Sample) -> float:
    """Return 3 for a completion in exactly the wanted format, else 0."""
    return 0.0 if exact_solution(sample.text) is None else 3.0


def format_approximate(sample: Sample) -> float:
    """Add 0.5 for each of the three markers that is there exactly once, take 1 for any other."""
    return sum(0.5 if sample.text.count(marker) == 1 else -1.0 for marker in MARKERS)
