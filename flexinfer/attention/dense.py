"""The plain back end: gather the pages, then scaled_dot_product_attention under an explicit mask.

It compiles nothing, runs anywhere and is what the other back ends are held against.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flexinfer.attention.kernel import RowKernel, TileKernel
from flexinfer.attention.masks import RowMask, TileMask, Tiling, row_mask, tile_mask
from flexinfer.attention.spec import LayerSpec


class DenseKernels:
    """Gather-and-multiply attention over pages of `page` tokens.

    `alone`: each row is attended by itself, over its own pages only, so that its bits do not depend
    on the lengths of others (this reads page counts on the host).
    """

    def __init__(self, page: int, *, alone: bool = False) -> None:
        """Remember the page size in tokens."""
        self._page, self._alone = page, alone

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> RowMask:
        """Return page lists cut at both ends."""
        return row_mask(rows_BP, positions_B, self._page, window, 0)

    def tile_mask(
        self, rows_NP: Tensor, positions_NQ: Tensor, logical: Tensor, window: int | None
    ) -> TileMask:
        """Return page lists and positions."""
        return tile_mask(rows_NP, positions_NQ, logical, self._page, window, 0)

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return decode attention; the window is in the mask's first page already."""
        return partial(_lone_rows if self._alone else _rows, self._page, spec.scale)

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return prefill attention."""
        return partial(_tiles, self._page, spec.scale, spec.window)


def _gathered(pool: Tensor, pages_BP: Tensor, page: int) -> Tensor:
    """Return [B, G, P * page, D]: the pages of every row, in order."""
    heads, head_dim = pool.shape[1], pool.shape[3]
    paged_GNpD = pool.view(heads, -1, page, head_dim)
    return paged_GNpD[:, pages_BP].flatten(2, 3).transpose(0, 1)


def _rows(page: int, scale: float, q_BHD: Tensor, k: Tensor, v: Tensor, mask: RowMask) -> Tensor:
    """Attend one query a row."""
    pages = mask.pages[:, 0, 0]
    column = torch.arange(pages.shape[1], device=pages.device)[None, :, None]
    offset = torch.arange(page, device=pages.device)[None, None, :]
    last = mask.counts - 1
    seen = (column < last) | ((column == last) & (offset <= mask.last_offset[:, None, None]))
    seen &= (column > 0) | (offset >= mask.first_offset[:, None, None])
    out = scaled_dot_product_attention(
        q_BHD[:, :, None],
        _gathered(k, pages, page),
        _gathered(v, pages, page),
        attn_mask=seen.flatten(1)[:, None, None],
        scale=scale,
        enable_gqa=True,
    )
    return out[:, :, 0]


def _lone_rows(
    page: int, scale: float, q_BHD: Tensor, k: Tensor, v: Tensor, mask: RowMask
) -> Tensor:
    """Attend one query a row, row by row."""
    out = torch.empty_like(q_BHD)
    for row, count in enumerate(mask.counts.flatten().tolist()):
        own = RowMask(*(part[row : row + 1] for part in mask))
        own = own._replace(pages=own.pages[..., :count])
        out[row : row + 1] = _rows(page, scale, q_BHD[row : row + 1], k, v, own)
    return out


def _tiles(
    page: int,
    scale: float,
    window: int | None,
    q_THD: Tensor,
    k: Tensor,
    v: Tensor,
    tiling: Tiling,
    mask: TileMask,
) -> Tensor:
    """Attend tile by tile, each over its own pages only (reads the counts on the host)."""
    q = tiling.tiled(q_THD)
    out = torch.zeros_like(q)
    for tile, count in enumerate(mask.counts.flatten().tolist()):
        pages = mask.pages[tile, :, 0, :count]
        kv = mask.logical[pages[0]][:, None] * page + torch.arange(page, device=q.device)
        query = mask.positions[tile][:, None]
        seen = (kv.flatten() <= query) & (query >= 0)
        if window is not None:
            seen &= query - kv.flatten() < window
        filled = int((mask.positions[tile] >= 0).sum())
        out[tile, :filled] = scaled_dot_product_attention(
            q[tile, :filled].transpose(0, 1)[None],
            _gathered(k, pages, page),
            _gathered(v, pages, page),
            attn_mask=seen[:filled][None, None],
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
    return tiling.packed(out)
