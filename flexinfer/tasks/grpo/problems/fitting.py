"""The problems of a set that a run takes, and how long their prompts are."""

from __future__ import annotations

from collections.abc import Iterable

from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.problems.held_out import first_held_out
from flexinfer.tasks.grpo.problems.length import within_length
from flexinfer.tasks.grpo.problems.problem_set import Encode, Problems, Row


def fitting(problems: Problems, encode: Encode, config: GrpoConfig) -> Problems:
    """Return those within --max-prompt-length, and as many held-out ones as are scored.

    Raises UsageError as within_length does.
    """
    within = within_length(problems, encode, config.max_prompt_length)
    return first_held_out(within, config.eval_size)


def longest_of(rows: Iterable[Row], encode: Encode) -> int:
    """Return the tokens of the longest prompt."""
    return max(len(encode(row["prompt"])) for row in rows)
