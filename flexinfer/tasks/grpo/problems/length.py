"""How long a prompt may be: what is longer is dropped, and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.grpo.problems.problem_set import Encode, Problems, Row

BY_PERCENTILE = frozenset({"dapo-math"})
"""Sets of which the longest tenth is left out where no limit is given."""


def within_length(problems: Problems, encode: Encode, limit: int | None = None) -> Problems:
    """Drop problems whose prompt has more than `limit` tokens, held-out ones too.

    Without a limit it is the 90th percentile of the lengths for sets in BY_PERCENTILE, and nothing
    is dropped of others. Raises UsageError where none is left or a prompt cannot be encoded.
    """
    if limit is None and problems.name not in BY_PERCENTILE:
        return problems
    lengths = _lengths(problems.name, problems.rows, encode)
    most = percentile_90(lengths) if limit is None else limit
    rows = _kept(problems.rows, lengths, most)
    if not rows:
        raise UsageError(
            f"--max-prompt-length {most}: every prompt of {problems.name} is longer, "
            f"the shortest has {min(lengths)} tokens",
            hint="raise it",
        )
    held_out = _kept(problems.held_out, _lengths(problems.name, problems.held_out, encode), most)
    why = ", the 90th percentile" if limit is None else ""
    dropped = len(lengths) - len(rows)
    notice = f"prompts: {dropped} of {len(lengths)} dropped, longer than {most} tokens{why}"
    return replace(problems, rows=rows, held_out=held_out, notices=(*problems.notices, notice))


def percentile_90(lengths: Sequence[int]) -> int:
    """Return the length that nine tenths do not pass, as the lower of two neighbours."""
    return sorted(lengths)[9 * (len(lengths) - 1) // 10]


def _lengths(name: str, rows: Sequence[Row], encode: Encode) -> list[int]:
    """Return the length of each prompt in tokens."""
    lengths = []
    for number, row in enumerate(rows, start=1):
        try:
            lengths.append(len(encode(row["prompt"])))
        except RequestError as error:
            raise UsageError(f"--dataset {name}, row {number}: {error.message}") from error
    return lengths


def _kept(rows: Sequence[Row], lengths: Sequence[int], most: int) -> list[Row]:
    """Return the rows whose length is at most `most`."""
    return [row for row, length in zip(rows, lengths, strict=True) if length <= most]
