"""`exact-answer`: right or not, whatever the format."""

from __future__ import annotations

from flexinfer.tasks.grpo.rewards.numbers import last_number, read_number
from flexinfer.tasks.grpo.rewards.sample import Sample
from flexinfer.tasks.grpo.rewards.sections import solution


def exact_answer(sample: Sample) -> float:
    """Return 1 where the completion says the answer, else 0.

    What counts is the solution between the markers where there is one, else the whole text; it is
    right if it equals the answer but for blanks around it, or its last number equals the answer's.
    """
    assert sample.answer is not None
    between = solution(sample.text)
    said = sample.text if between is None else between
    if said.strip() == sample.answer.strip():
        return 1.0
    right = read_number(sample.answer)
    return float(right is not None and last_number(said) == right)
