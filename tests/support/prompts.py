"""Seeded prompts of given lengths, and the comparison of their logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.support.tiny import VOCAB

TOLERANCE = 1e-4
"""Largest difference of two log-probabilities in fp32 that counts as the same."""


def prompts_of(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Draw one prompt of each length, no special ids among the tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of log-probabilities over lists of [length, V] logits."""
    pairs = zip(found, expected, strict=True)
    return max(
        float((a.float().log_softmax(-1) - b.float().log_softmax(-1)).abs().max()) for a, b in pairs
    )


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Fail unless log-probabilities agree and the logits are far from flat."""
    assert all(a.shape == b.shape for a, b in zip(found, expected, strict=True))
    assert min(float(b.std(-1).min()) for b in expected) > 0.5
    assert distance(found, expected) < TOLERANCE
