"""Masks on index grids: decoded entry by entry, they show exactly the positions they should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexinfer.attention.masks import RowMask, TileMask, row_mask, tile_mask, window_columns

WINDOWS = (None, 1, 2, 7, 8, 9, 15, 16, 17, 40)
COLUMNS = 6
windows = pytest.mark.parametrize("window", WINDOWS)
pages = pytest.mark.parametrize("page", [8, 16])


def table(rows: int) -> Tensor:
    """Draw page-table rows of distinct pages, none of them scratch, in no order."""
    generator = torch.Generator().manual_seed(rows)
    order = torch.randperm(rows * COLUMNS, generator=generator) + 1
    return order.view(rows, COLUMNS).int()


def definition(position: int, window: int | None) -> set[int]:
    """Return what a query at `position` sees: itself and what is less than `window` before it."""
    return {kv for kv in range(position + 1) if window is None or position - kv < window}


def shown_by_row(mask: RowMask, row: int, columns_of: dict[int, int], page: int) -> set[int]:
    """Decode one row of a mask into the positions it shows."""
    listed = mask.pages[row, 0, 0, : int(mask.counts[row])].tolist()
    assert len(set(listed)) == len(listed)
    return {
        columns_of[p] * page + offset
        for p in listed
        for offset in range(page)
        if (p != mask.last_page[row] or offset <= mask.last_offset[row])
        and (p != mask.first_page[row] or offset >= mask.first_offset[row])
    }


def shown_by_tile(mask: TileMask, tile: int, query: int, page: int, window: int | None) -> set[int]:
    """Decode one query of a tile mask, by the rule that kernels follow."""
    listed = mask.pages[tile, 0, 0, : int(mask.counts[tile])].tolist()
    keys = [int(mask.logical[p]) * page + offset for p in listed for offset in range(page)]
    at = int(mask.positions[tile, query])
    return {k for k in keys if k <= at and (window is None or at - k < window)}


@windows
@pages
def test_a_row_shows_its_window_and_nothing_else(page: int, window: int | None) -> None:
    positions = torch.arange(COLUMNS * page)
    rows = table(len(positions))
    mask = row_mask(rows, positions, page, window, 0)
    for row, position in enumerate(positions.tolist()):
        columns_of = {p: column for column, p in enumerate(rows[row].tolist())}
        assert shown_by_row(mask, row, columns_of, page) == definition(position, window)


@windows
@pages
def test_a_row_visits_no_page_in_vain(page: int, window: int | None) -> None:
    positions = torch.arange(COLUMNS * page)
    mask = row_mask(table(len(positions)), positions, page, window, 0)
    for row, position in enumerate(positions.tolist()):
        seen = definition(position, window)
        assert int(mask.counts[row]) == max(seen) // page - min(seen) // page + 1
    assert mask.pages.shape[-1] == window_columns(COLUMNS, page, window)


@windows
@pages
@pytest.mark.parametrize("queries", [1, 4, 32])
def test_a_tile_shows_each_query_its_window(page: int, window: int | None, queries: int) -> None:
    starts = torch.arange(0, COLUMNS * page - queries + 1, 3)
    rows = table(len(starts))
    logical = torch.zeros(len(starts) * COLUMNS + 1, dtype=torch.int32)
    logical[rows.long()] = torch.arange(COLUMNS, dtype=torch.int32)
    positions = starts[:, None] + torch.arange(queries)
    positions[1::2, queries // 2 + 1 :] = -1
    mask = tile_mask(rows, positions, logical, page, window, 0)
    for tile, at in enumerate(positions.tolist()):
        for query, position in enumerate(at):
            shown = shown_by_tile(mask, tile, query, page, window)
            assert shown == (definition(position, window) if position >= 0 else set())


@windows
def test_a_tile_visits_no_page_in_vain(window: int | None) -> None:
    page, queries = 8, 4
    starts = torch.arange(COLUMNS * page - queries + 1)
    positions = starts[:, None] + torch.arange(queries)
    logical = torch.zeros(len(starts) * COLUMNS + 1, dtype=torch.int32)
    mask = tile_mask(table(len(starts)), positions, logical, page, window, 0)
    for tile, start in enumerate(starts.tolist()):
        first = min(definition(start, window)) // page
        assert int(mask.counts[tile]) == (start + queries - 1) // page - first + 1
        assert int(mask.counts[tile]) <= mask.pages.shape[-1]


def test_rows_may_share_pages() -> None:
    rows = torch.tensor([[3, 4, 9], [3, 4, 8]], dtype=torch.int32)
    mask = row_mask(rows, torch.tensor([12, 17]), 8, None, 0)
    assert mask.counts.flatten().tolist() == [2, 3]
    assert shown_by_row(mask, 0, {3: 0, 4: 1}, 8) == definition(12, None)
    assert shown_by_row(mask, 1, {3: 0, 4: 1, 8: 2}, 8) == definition(17, None)


def test_page_lists_are_padded_with_scratch() -> None:
    mask = row_mask(table(2), torch.tensor([0, 20]), 8, 8, 30)
    assert mask.pages.shape == (2, 1, 1, 30)
    assert not mask.pages[..., window_columns(COLUMNS, 8, 8) :].any()
    tiles = tile_mask(table(1), torch.tensor([[0, 1]]), torch.zeros(7), 8, None, 30)
    assert tiles.pages.shape == (1, 1, 1, 30)


def test_masks_are_int32_throughout() -> None:
    for tensor in row_mask(table(2), torch.tensor([0, 20]), 8, 8, 30):
        assert tensor.dtype == torch.int32
    logical = torch.zeros(7, dtype=torch.int32)
    for tensor in tile_mask(table(1), torch.tensor([[0, 1]]), logical, 8, 8, 30):
        assert tensor.dtype == torch.int32


@pytest.mark.parametrize(
    ("window", "columns"), [(None, 6), (1, 2), (8, 2), (9, 3), (16, 3), (17, 4), (1000, 6)]
)
def test_window_columns(window: int | None, columns: int) -> None:
    assert window_columns(6, 8, window) == columns
