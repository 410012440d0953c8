"""The seed workload: prompts of random token ids, the same on every machine."""

from __future__ import annotations

from random import Random

FIRST_ID, TOP_ID = 1000, 120_000
"""Ids are drawn from [FIRST_ID, min(vocabulary, TOP_ID)): special ids lie outside."""


def prompt_lengths(n_prompts: int, lengths: tuple[int, int], seed: int = 0) -> list[int]:
    """Return how many tokens each prompt of `workload` has, whatever the vocabulary."""
    return _drawn(Random(seed), n_prompts, lengths)


def _drawn(draw: Random, n_prompts: int, lengths: tuple[int, int]) -> list[int]:
    """Draw the lengths of prompts."""
    return [draw.randint(*lengths) for _ in range(n_prompts)]


def workload(
    n_prompts: int, vocab_size: int, lengths: tuple[int, int], seed: int = 0
) -> list[tuple[int, ...]]:
    """Draw all lengths (both ends included), then the ids, from one `random.Random(seed)`.

    A vocabulary under 2,000 gives its upper half instead, so that tiny models can be measured.
    """
    draw = Random(seed)
    top = min(vocab_size, TOP_ID)
    first = min(FIRST_ID, top // 2)
    sizes = _drawn(draw, n_prompts, lengths)
    return [tuple(draw.randrange(first, top) for _ in range(size)) for size in sizes]
