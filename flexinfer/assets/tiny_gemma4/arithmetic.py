"""Sums and differences of 0..99 as text, split once and for all into training and held-out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256

Problem = tuple[str, str]
"""(prompt, answer), for example ("12+30=", "42") or ("3-10=", "-7")."""

OPERANDS = range(100)
HELD_OUT_TENTHS = 1


def problem(a: int, sign: str, b: int) -> Problem:
    """Write `a+b=` or `a-b=` and its answer in plain digits."""
    return f"{a}{sign}{b}=", str(a + b if sign == "+" else a - b)


def is_held_out(a: int, b: int) -> bool:
    """Tell whether the unordered pair {a, b} is kept from training, for both signs."""
    low, high = sorted((a, b))
    return sha256(f"{low},{high}".encode()).digest()[0] % 10 < HELD_OUT_TENTHS


def problems(seed: int) -> Iterator[Problem]:
    """Draw training problems without end, uniformly, `+` and `-` equally often."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in OPERANDS for b in OPERANDS if not is_held_out(a, b)]
    while True:
        a, b = rng.choice(pairs)
        yield problem(a, rng.choice("+-"), b)


def held_out(n: int) -> list[Problem]:
    """Return the first `n` held-out problems of a fixed shuffled order, signs alternating."""
    pairs = [(a, b) for a in OPERANDS for b in OPERANDS if is_held_out(a, b)]
    pairs.sort(key=lambda pair: sha256(f"order {pair}".encode()).digest())
    found = [problem(a, "+-"[i % 2], b) for i, (a, b) in enumerate(pairs)]
    if n > len(found):
        raise ValueError(f"only {len(found)} held-out problems exist, {n} asked for")
    return found[:n]
