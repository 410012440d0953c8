"""The prompts that are rolled out, and the batches they are mixed into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from flexinfer.tasks.workload import workload

Prompt = tuple[int, ...]
EFFECT_PROMPTS, EFFECT_TOKENS = 16, 8
"""Prompts that an adapter's effect is read from, and tokens of each, given and new, at most."""


def lengths(
    windows: Iterable[int], page: int, new_tokens: int, n_prompts: int, longest: int
) -> tuple[int, ...]:
    """Return prompt lengths that make sequences cross every edge, the windows' first.

    Of each window and of a page one prompt ends before it, so that decoding crosses it, and one
    lies beyond; then one token alone, then several pages. None leaves less room than `new_tokens`
    within `longest` (which is larger).
    """
    edges = [*sorted(set(windows)), page]
    wanted = [n for e in edges for n in (max(1, e - new_tokens // 2), e + new_tokens)]
    filling = (page * pages + pages for pages in count(1))
    found: dict[int, None] = dict.fromkeys(n for n in [*wanted, 1] if n + new_tokens <= longest)
    while len(found) < n_prompts and (more := next(filling)) + new_tokens <= longest:
        found[more] = None
    kept = [*found] or [1]
    return tuple(kept[i % len(kept)] for i in range(n_prompts))


def draw(sizes: Sequence[int], vocab_size: int, seed: int) -> tuple[Prompt, ...]:
    """Draw a prompt of each size from the ids of bench's workload, no two of them equal in use."""
    return tuple(
        workload(1, vocab_size, (size, size), seed + 1000 * i)[0] for i, size in enumerate(sizes)
    )


def effect_probe(longest: int, vocab_size: int, seed: int) -> tuple[tuple[Prompt, ...], int]:
    """Return short prompts and new tokens within `longest`: as many, however little is asked for.

    An adapter must show in some of their log-probabilities; a single token may be sure of itself.
    """
    size = min(EFFECT_TOKENS, longest // 2)
    return draw((size,) * EFFECT_PROMPTS, vocab_size, seed), min(EFFECT_TOKENS, longest - size)


def batch_sizes(most: int) -> tuple[int, ...]:
    """Return 1, 2, 3, 5, 8, ... up to `most`, which is among them."""
    sizes, following = [1], 2
    while following < most:
        sizes, following = [*sizes, following], sizes[-1] + following
    return tuple(dict.fromkeys((*sizes, most)))


STRANGERS = 4
"""One in so many rows that fill a batch up is a prompt of its own; the others are repeats."""


class Place(NamedTuple):
    """A row of a batch: the number of a prompt, or None for a stranger; its ids and new tokens."""

    prompt: int | None
    ids: Prompt
    new_tokens: int


def batches(
    prompts: Sequence[Prompt], size: int, new_tokens: int, vocab_size: int, seed: int
) -> list[list[Place]]:
    """Spread the prompts, shuffled, over batches of exactly `size`.

    What is missing is filled up with repeats, which share the prompt's pages, and short strangers,
    which do not. They end at different times in the second half, so that rows leave and the batch
    shrinks while others go on.
    """
    random = Random(seed + size)
    half = min(new_tokens, new_tokens // 2 + 1)
    order = random.sample(range(len(prompts)), len(prompts))
    found = []
    for start in range(0, len(order), size):
        rows = [Place(i, prompts[i], new_tokens) for i in order[start : start + size]]
        for extra in range(size - len(rows)):
            number, length = order[extra % len(order)], random.randint(half, new_tokens)
            if extra % STRANGERS == STRANGERS - 1:
                ids = workload(1, vocab_size, (2, 24), random.randrange(2**31))[0]
                rows.append(Place(None, ids, length))
            else:
                rows.append(Place(number, prompts[number], length))
        random.shuffle(rows)
        found.append(rows)
    return found
