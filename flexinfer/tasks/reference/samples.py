"""What is held against each other: an engine's samples, and what a reference says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Checked(NamedTuple):
    """One sample of an engine: prompt and what the engine made of it, with log-probabilities."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Scored(NamedTuple):
    """The reference at one position: its `best` token and how far that leads the second.

    `behind` is how far the engine's token is behind the best (0: it is the best), both in logits;
    `logprob` is the engine's token's.
    """

    best: int
    margin: float
    behind: float
    logprob: float


class Reference(NamedTuple):
    """What the reference says of every position of every sample.

    `own_logprobs` are the tokens' as the module computes them in its own `dtype`, `noise` is what
    that does to logits.
    """

    scores: Sequence[Sequence[Scored]]
    own_logprobs: Sequence[Sequence[float]]
    noise: float
    dtype: str
