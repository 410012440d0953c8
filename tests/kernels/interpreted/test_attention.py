"""Decode attention over pages, by definition; what a query may not see is NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flexinfer.attention.spec import LayerSpec
from flexinfer.kernels.fast.attention import DecodeTile, paged_decode
from tests.support.triton_interpreter import close, normal
from tests.support.triton_pages import Scattered, spec_of

POSITIONS = (0, 1, 15, 16, 17, 31, 32, 63, 64, 70)
"""On both sides of pages of 16 and 32 and of turns of 16."""
EDGES = (0, 15, 16, 33, 70)


def check(held: Scattered, tile: DecodeTile) -> None:
    """Fail unless each sequence's last position gets what the definition says."""
    positions = torch.tensor(held.last)
    q = normal(len(positions), held.spec.heads, held.spec.head_dim)
    found = paged_decode(
        q, held.pools, held.table, positions, held.page, held.spec.window, held.spec.scale, tile
    )
    for row, position in enumerate(held.last):
        close(found[row], held.expected(row, position, q[row]))


def held(spec: LayerSpec, page: int = 16, positions: tuple[int, ...] = POSITIONS) -> Scattered:
    """Return sequences that end at `positions`."""
    return Scattered(spec, positions, positions, page)


@pytest.mark.parametrize("split", [1, 2, 3, 8])
def test_positions_and_shares(split: int) -> None:
    """With eight shares of at most five turns, some are empty."""
    check(held(spec_of(2, 1, 16)), DecodeTile(16, split, 2, 2))


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 33, 200])
def test_windows(window: int, split: int) -> None:
    """Edges of windows inside pages and on their edges, and windows longer than what there is."""
    check(held(spec_of(2, 1, 16, window), positions=EDGES), DecodeTile(16, split, 2, 2))


@pytest.mark.parametrize("heads", [(2, 2), (3, 1), (6, 2), (4, 1), (8, 1), (40, 2)])
def test_query_heads_a_kv_head(heads: tuple[int, int]) -> None:
    check(held(spec_of(*heads), positions=(40, 5)), DecodeTile(16, 2, 2, 2))


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256, 512])
def test_head_dims(head_dim: int) -> None:
    check(held(spec_of(2, 1, head_dim), positions=(40, 16)), DecodeTile(16, 2, 2, 2))


@pytest.mark.parametrize(("page", "turn"), [(8, 16), (8, 32), (32, 16), (32, 32), (128, 32)])
@pytest.mark.parametrize("window", [None, 20])
def test_pages_and_turns(page: int, turn: int, window: int | None) -> None:
    check(held(spec_of(2, 1, 16, window), page, (31, 32, 70)), DecodeTile(turn, 2, 2, 2))


@pytest.mark.parametrize("spare", [0, 1, 40])
def test_tables_of_any_width(spare: int) -> None:
    check(replace(held(spec_of(2, 1, 16), positions=(70, 3)), spare=spare), DecodeTile(16, 1, 2, 2))


def test_one_column() -> None:
    check(replace(held(spec_of(), positions=(9, 15)), spare=0), DecodeTile(16, 2, 2, 2))


def test_scores_of_any_size() -> None:
    """The softmax must not overflow, nor may a share whose scores are all low vanish wrongly."""
    rows = held(spec_of(), positions=(70, 40))
    for values in rows.keys_values[:1]:
        values.mul_(60)
    check(rows, DecodeTile(16, 3, 2, 2))
