"""Norms with the residual and the partial sums before them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexinfer.kernels.fast.norms import add_norm, post_norm
from flexinfer.kernels.ops import PlainOps
from tests.support.triton_interpreter import DTYPES, close, normal, same

PLAIN = PlainOps()
splits = pytest.mark.parametrize("split", [0, 2, 3, 4])
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def operands(split: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return a residual [3, size], a projection's result, and what the result amounts to.

    Partial sums are fp32 (`split` of them); 0: the result is whole.
    """
    residual = (normal(3, size) * torch.tensor([[1e-3], [1.0], [30.0]])).to(dtype)
    delta = normal(max(split, 1), 3, size, seed=1)
    whole = delta.sum(0).to(dtype)
    return residual, delta if split else whole, whole


@dtypes
@splits
@pytest.mark.parametrize("size", [64, 96])
def test_add_norm(size: int, split: int, dtype: torch.dtype) -> None:
    residual, delta, whole = operands(split, size, dtype)
    weight = normal(size, seed=2, dtype=dtype)
    before = residual.clone()
    for found, expected in zip(
        add_norm(residual, delta, weight, 1e-5),
        PLAIN.add_norm(residual, whole, weight, 1e-5),
        strict=True,
    ):
        same(found, expected)
    assert torch.equal(residual, before)


@dtypes
@splits
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_post_norm(scaled: bool, after: bool, split: int, dtype: torch.dtype) -> None:
    residual, delta, whole = operands(split, 96, dtype)
    post = normal(96, seed=2, dtype=dtype)
    scalar = torch.tensor([0.7], dtype=dtype) if scaled else None
    weight = normal(96, seed=3, dtype=dtype) if after else None
    found = post_norm(residual, delta, post, weight, scalar, 1e-6)
    expected = PLAIN.post_norm(residual, whole, post, scalar, weight, 1e-6)
    for a, b in zip(found, expected, strict=True):
        same(a, b)


def test_eps_counts() -> None:
    tiny, zero = normal(2, 64) * 1e-4, torch.zeros(2, 64)
    weight = torch.ones(64)
    found = [add_norm(tiny, zero, weight, eps)[1] for eps in (1e-6, 1e-4)]
    expected = [PLAIN.add_norm(tiny, zero, weight, eps)[1] for eps in (1e-6, 1e-4)]
    for a, b in zip(found, expected, strict=True):
        close(a, b)
    assert (found[0] - found[1]).abs().max() > 0.05
