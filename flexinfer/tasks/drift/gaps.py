"""Log-probabilities of the same tokens, held against each other: pure arithmetic, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean
from typing import NamedTuple

from flexinfer.tasks.reference.samples import Checked

Rollout = tuple[Checked, ...]
"""What an engine made of the prompts, one sample each."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """New token `position` of prompt number `prompt` (both from 0), with both log-probabilities."""

    prompt: int
    prompt_tokens: int
    position: int
    token: int
    rollout: float
    trainer: float


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far rollout and trainer are apart over `tokens`; d = trainer - rollout, in nats.

    `k3` is mean(exp(d) - 1 - d), Schulman's estimate of KL(rollout, trainer); `ratio_*` are exp(d),
    the importance ratio.
    """

    tokens: int
    mean_gap: float
    max_gap: float
    k3: float
    ratio_min: float
    ratio_mean: float
    ratio_max: float

    @property
    def finite(self) -> bool:
        """Whether every figure is a number."""
        return all(map(math.isfinite, vars(self).values()))


def gap(rollout: Sequence[Sequence[float]], trainer: Sequence[Sequence[float]]) -> Gap:
    """Measure over all tokens of all samples."""
    d = [t - r for t, r in zip(chain(*trainer), chain(*rollout), strict=True)]
    ratios = [_exp(x) for x in d]
    return Gap(
        tokens=len(d),
        mean_gap=mean(map(abs, d)),
        max_gap=max(map(abs, d)),
        k3=mean(_expm1(x) - x for x in d),
        ratio_min=min(ratios),
        ratio_mean=mean(ratios),
        ratio_max=max(ratios),
    )


def first_divergence(
    rollout: Rollout, trainer: Sequence[Sequence[float]], limit: float
) -> Divergence | None:
    """Return the first token whose log-probabilities are more than `limit` apart."""
    for number, (sample, row) in enumerate(zip(rollout, trainer, strict=True)):
        for position, (mine, theirs) in enumerate(zip(sample.logprobs, row, strict=True)):
            if not abs(theirs - mine) <= limit:
                return Divergence(
                    prompt=number,
                    prompt_tokens=len(sample.prompt),
                    position=position,
                    token=sample.token_ids[position],
                    rollout=mine,
                    trainer=theirs,
                )
    return None


class Answers(NamedTuple):
    """Samples of prompts in any order, `numbers` saying of which; some have fewer tokens."""

    numbers: tuple[int, ...]
    samples: Rollout

    def of(self, rollout: Rollout) -> Rollout:
        """Return a whole rollout's samples of the same prompts, cut to the same lengths."""
        return tuple(
            Checked(
                rollout[number].prompt,
                rollout[number].token_ids[: len(sample.token_ids)],
                rollout[number].logprobs[: len(sample.token_ids)],
            )
            for number, sample in zip(self.numbers, self.samples, strict=True)
        )


class Parting(NamedTuple):
    """Where two runs of one prompt first choose differently, and what they chose."""

    prompt: int
    position: int
    token: int
    other: int


def partings(one: Rollout, other: Rollout) -> Iterator[Parting]:
    """Yield the first different id of every prompt that has one."""
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        at = _common(a, b)
        if at < len(a.token_ids):
            yield Parting(number, at, a.token_ids[at], b.token_ids[at])


def widest(one: Rollout, other: Rollout) -> float:
    """Return the largest difference of log-probabilities up to where ids part, in nats."""
    found = [
        abs(x - y)
        for a, b in zip(one, other, strict=True)
        for x, y in zip(a.logprobs[: _common(a, b)], b.logprobs, strict=False)
    ]
    return max(found, default=0.0)


def n_different(one: Rollout, other: Rollout) -> int:
    """Return how many tokens differ in id or in any bit of their log-probability."""
    return sum(
        x != y
        for a, b in zip(one, other, strict=True)
        for x, y in zip(
            zip(a.token_ids, a.logprobs, strict=True),
            zip(b.token_ids, b.logprobs, strict=True),
            strict=True,
        )
    )


def changed(one: Rollout, other: Rollout) -> float:
    """Return the largest change of a log-probability up to and with the first different id."""
    found = [
        abs(x - y)
        for a, b in zip(one, other, strict=True)
        for x, y in zip(a.logprobs[: _common(a, b) + 1], b.logprobs, strict=False)
    ]
    return max(found, default=0.0)


def _common(a: Checked, b: Checked) -> int:
    """Return how many tokens two samples begin with alike."""
    pairs = enumerate(zip(a.token_ids, b.token_ids, strict=True))
    return next((at for at, (x, y) in pairs if x != y), len(a.token_ids))


def _exp(x: float) -> float:
    """Return e**x, infinity beyond what a float holds."""
    return math.exp(x) if not x > 700 else math.inf


def _expm1(x: float) -> float:
    """Return e**x - 1, infinity beyond what a float holds."""
    return math.expm1(x) if not x > 700 else math.inf
