"""The record of a set of problems, as the trainer takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, str]
Prompt = str | Sequence[Message]
"""Raw text that no template touches, or the messages of a conversation up to the model's turn."""
Encode = Callable[[Prompt], Sequence[int]]
"""Gives the token ids that a prompt is served as, template included; raises RequestError."""
Row = Mapping[str, Any]
"""`prompt` (a Prompt), `answer` (str or None), and further columns that rewards are given."""


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Problems to train on and, apart from them, to evaluate on; all rows have the same columns.

    `rewards` names those that judge it where no other is asked for.
    """

    name: str
    rows: Sequence[Row]
    held_out: Sequence[Row] = ()
    rewards: tuple[str, ...]
    notices: tuple[str, ...] = ()


def user_says(text: str, system: str | None = None) -> list[Message]:
    """Return the messages of one user turn, after a `system` one where it is given."""
    said: list[Message] = [{"role": "user", "content": text}]
    return said if system is None else [{"role": "system", "content": system}, *said]
