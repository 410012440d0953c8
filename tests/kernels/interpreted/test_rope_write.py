"""From projections to queries and stored keys and values, as the plain form makes them.

Shape letters: T tokens, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from flexinfer.attention.paged import Pages
from flexinfer.kernels.fast.rope_write import rope_write
from flexinfer.kernels.heads import HeadNorms, heads
from flexinfer.kernels.rope import Rope, rope_tables
from tests.support.triton_interpreter import DTYPES, normal, same

D, POOL = 16, 40
ADDRESS = torch.tensor([33, 0, 17, 18, 39])
T = len(ADDRESS)
POSITIONS = torch.tensor([0, 1, 15, 16, 900])
NORMS = {
    "none": (False, False, False),
    "early": (True, False, False),
    "late": (True, True, False),
    "late, values too": (True, True, True),
}
dtypes = pytest.mark.parametrize("dtype", DTYPES)
norms = pytest.mark.parametrize("norm", NORMS)


def norms_of(kind: str, head_dim: int, dtype: torch.dtype) -> HeadNorms:
    """Return per-head norms whose weights differ between q and k."""
    weighted, late, v = NORMS[kind]
    q, k = (normal(head_dim, seed=s, dtype=dtype) if weighted else None for s in (5, 6))
    return HeadNorms(q, k, v=v, eps=1e-6, late=late)


def rope_of(head_dim: int, dtype: torch.dtype) -> Rope:
    """Return tables of angles large and small."""
    inv_freq = 100.0 ** (-torch.arange(head_dim // 2) / (head_dim // 2))
    return rope_tables(POSITIONS, inv_freq, 0.9, dtype)


class Heads(NamedTuple):
    """Numbers of query and kv heads, and how many kinds of projections: q; q, k; or q, k, v."""

    H: int
    G: int
    parts: int = 3

    def widths(self, head_dim: int) -> list[int]:
        """Return the columns of each projection."""
        return [n * head_dim for n in (self.H, self.G, self.G)[: self.parts]]


def pools(G: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return K and V pools filled with what must stay where nothing is stored."""
    k, v = (normal(1, G, POOL, head_dim, seed=seed, dtype=dtype) for seed in (7, 8))
    return k, v


def both(
    heads_: Heads,
    norm: str,
    split: int = 0,
    head_dim: int = D,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, Any]:
    """Return (queries, K pool, V pool) of the kernel, and of the plain form."""
    widths = heads_.widths(head_dim)
    qkv = normal(max(split, 1), T, sum(widths))
    whole = qkv.sum(0).to(dtype)
    rope, norms_ = rope_of(head_dim, dtype), norms_of(norm, head_dim, dtype)
    found, expected = (pools(heads_.G, head_dim, dtype) for _ in range(2))
    q = rope_write(
        qkv if split else whole, (heads_.H, heads_.G, head_dim), norms_, rope,
        found if len(widths) > 1 else None, ADDRESS, len(widths) == 2, dtype,
    )  # fmt: skip
    parts = whole.split(widths, 1)
    return (q, *found), (
        heads(parts, head_dim, norms_, rope, Pages(expected, ADDRESS)),
        *expected,
    )


def assert_equal(outcome: tuple[Any, Any]) -> None:
    """Fail unless queries and whole pools are the same."""
    for found, expected in zip(*outcome, strict=True):
        same(found, expected)


@dtypes
@norms
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_norms_and_parts(parts: int, norm: str, dtype: torch.dtype) -> None:
    assert_equal(both(Heads(4, 2, parts), norm, dtype=dtype))


@dtypes
@pytest.mark.parametrize("split", [2, 3, 4])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_partial_sums(parts: int, split: int, dtype: torch.dtype) -> None:
    assert_equal(both(Heads(4, 2, parts), "late, values too", split, dtype=dtype))


@pytest.mark.parametrize("heads_", [Heads(1, 1), Heads(3, 1), Heads(6, 2), Heads(8, 1)])
def test_numbers_of_heads(heads_: Heads) -> None:
    assert_equal(both(heads_, "early"))


@pytest.mark.parametrize("head_dim", [32, 64, 256])
def test_head_dims(head_dim: int) -> None:
    assert_equal(both(Heads(4, 2), "late", head_dim=head_dim))


def test_queries_alone_touch_no_pool() -> None:
    (_, *found), _ = both(Heads(4, 2, 1), "late")
    for a, b in zip(found, pools(2, D, torch.float32), strict=True):
        assert torch.equal(a, b)


def test_early_and_late_weights_round_differently() -> None:
    early, late = (both(Heads(4, 2), kind, dtype=torch.float16)[0] for kind in ("early", "late"))
    assert (early[0] != late[0]).double().mean() > 0.05
