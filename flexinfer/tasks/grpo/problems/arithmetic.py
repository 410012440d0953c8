"""`arithmetic`: the sums that tiny-gemma4 was trained on, without end, and 200 it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import overload

from flexinfer.assets.tiny_gemma4.arithmetic import OPERANDS, held_out, is_held_out, problem
from flexinfer.tasks.grpo.problems.problem_set import Problems, Row, user_says

NAME = "arithmetic"
ROWS = 2**13
"""How many sums are trained on where no number is asked for."""
HELD_OUT = 200
"""The test sums of tiny-gemma4."""


class Sums(Sequence[Row]):
    """The first `count` sums of a `seed`; each is made when asked for, from (seed, index) alone."""

    def __init__(self, seed: int, count: int) -> None:
        """Keep which sums are meant."""
        self._seed, self._indices = seed, range(count)

    def __len__(self) -> int:
        """How many sums there are."""
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Make a sum, or a list of them."""
        if isinstance(index, slice):
            return [self._made(i) for i in self._indices[index]]
        return self._made(self._indices[index])

    def _made(self, index: int) -> Row:
        """Draw a pair that is not held out, uniformly, and a sign."""
        drawn = int.from_bytes(sha256(f"{self._seed},{index}".encode()).digest())
        rest, sign = divmod(drawn, 2)
        a, b = _pairs()[rest % len(_pairs())]
        return _row(*problem(a, "+-"[sign], b))


def arithmetic(seed: int, count: int | None) -> Problems:
    """Return `count` sums (ROWS where None) as user messages, and HELD_OUT others beside them."""
    rows = Sums(seed, ROWS if count is None else count)
    return Problems(
        name=NAME,
        rows=rows,
        held_out=[_row(prompt, answer) for prompt, answer in held_out(HELD_OUT)],
        rewards=("exact-answer",),
        notices=(f"problems: {NAME}, {len(rows)} sums; {HELD_OUT} others are held out",),
    )


@cache
def _pairs() -> tuple[tuple[int, int], ...]:
    """Return the pairs of operands that may be trained on."""
    return tuple((a, b) for a in OPERANDS for b in OPERANDS if not is_held_out(a, b))


def _row(prompt: str, answer: str) -> Row:
    """Ask a sum as the embedded model was asked: alone in a user message."""
    return {"prompt": user_says(prompt), "answer": answer}
