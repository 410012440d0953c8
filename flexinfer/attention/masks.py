"""What a step's queries may see, as page lists and offsets: one mask per distinct window per step.

Shape letters: B rows (one query each), N tiles (Q queries each of one sequence), P page columns.
A page-table row *is* the block mask's `kv_indices`, so nothing is built per layer and pages may be
shared between sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class RowMask(NamedTuple):
    """One query a row: it sees whole pages, but for the ends of the first and the last one.

    All int32: `counts` [B, 1, 1] pages to visit, `pages` [B, 1, 1, P] physical pages in order,
    `first_page`/`last_page` [B] physical, `first_offset`/`last_offset` [B] inside them, inclusive.
    """

    counts: Tensor
    pages: Tensor
    first_page: Tensor
    first_offset: Tensor
    last_page: Tensor
    last_offset: Tensor


class TileMask(NamedTuple):
    """Q queries a tile, all of one sequence.

    All int32: `counts` [N, 1, 1], `pages` [N, 1, 1, P], `positions` [N, Q] of the queries (-1 is
    padding and sees nothing), `logical` [n_pages] the column of every page.
    """

    counts: Tensor
    pages: Tensor
    positions: Tensor
    logical: Tensor


class Tiling(NamedTuple):
    """How packed tokens are cut into tiles of one sequence each.

    `source` int64 [N, Q]: the packed token of each query (any token where padded); `place` int64
    [T]: where in the flattened tiles a token's query lies.
    """

    source: Tensor
    place: Tensor

    def tiled(self, q_THD: Tensor) -> Tensor:
        """Return packed queries as tiles [N, Q, H, D]."""
        return q_THD[self.source]

    def packed(self, out_NQHD: Tensor) -> Tensor:
        """Return tiles as packed tokens [T, H, D]."""
        return out_NQHD.flatten(0, 1)[self.place]


def window_columns(columns: int, page: int, window: int | None) -> int:
    """Return how many page columns a row of `columns` needs to cover `window` positions."""
    return columns if window is None else min(columns, (window - 1) // page + 2)


def row_mask(
    rows_BP: Tensor, positions_B: Tensor, page: int, window: int | None, columns: int
) -> RowMask:
    """Build the mask of queries at `positions` that see `position - kv < window` (None: all).

    `rows` are page-table rows; the page list is padded with page 0 to `columns`.
    """
    last = positions_B // page
    if window is None:
        first_position = torch.zeros_like(positions_B)
    else:
        first_position = (positions_B - (window - 1)).clamp(min=0)
    first = first_position // page
    pages = _shifted(rows_BP, first, window_columns(rows_BP.shape[1], page, window))
    at_last = rows_BP.gather(1, last[:, None])[:, 0]
    return RowMask(
        counts=(last - first + 1).int()[:, None, None],
        pages=_padded(pages, columns),
        first_page=pages[:, 0].contiguous(),
        first_offset=(first_position % page).int(),
        last_page=at_last,
        last_offset=(positions_B % page).int(),
    )


def tile_mask(
    rows_NP: Tensor,
    positions_NQ: Tensor,
    logical: Tensor,
    page: int,
    window: int | None,
    columns: int,
) -> TileMask:
    """Build the mask of tiles of queries; each tile's first query is its lowest position.

    The window itself is applied by position in the kernel; here it only shortens the page list.
    """
    last = positions_NQ.amax(1).clamp(min=0) // page
    if window is None:
        first, width = torch.zeros_like(last), rows_NP.shape[1]
    else:
        first = (positions_NQ[:, 0] - (window - 1)).clamp(min=0) // page
        width = window_columns(rows_NP.shape[1], page, window + positions_NQ.shape[1])
    return TileMask(
        counts=(last - first + 1).int()[:, None, None],
        pages=_padded(_shifted(rows_NP, first, width), columns),
        positions=positions_NQ.int(),
        logical=logical,
    )


def _shifted(rows_BP: Tensor, first_B: Tensor, width: int) -> Tensor:
    """Return `width` columns of each row from its own `first` on (the last column repeats)."""
    shift = torch.arange(width, device=rows_BP.device)
    index = (first_B[:, None] + shift).clamp(max=rows_BP.shape[1] - 1)
    return rows_BP.gather(1, index)


def _padded(pages_BP: Tensor, columns: int) -> Tensor:
    """Return [B, 1, 1, max(P, columns)], padded with the scratch page."""
    missing = max(columns - pages_BP.shape[1], 0)
    return pad(pages_BP, (0, missing))[:, None, None, :].contiguous()
