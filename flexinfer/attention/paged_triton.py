"""The fast back end: own Triton kernels, for decode rows and for prefill tiles."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from flexinfer.attention.kernel import RowKernel, TileKernel
from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import LayerSpec
from flexinfer.kernels.fast.attention import paged_decode
from flexinfer.kernels.fast.prefill import paged_prefill
from flexinfer.kernels.fast.tiles.table import TileTable

LEAST_KEYS = 16
"""Keys that a turn of decode attention has at least: tensor cores take no fewer."""


class PageRows(NamedTuple):
    """Page-table rows int32 [B, P] and int64 positions; the kernels cut windows themselves.

    Positions are [B] for rows, and [N, Q] with -1 for padding for tiles.
    """

    pages_BP: Tensor
    positions: Tensor


class TritonKernels:
    """Attention by kernels.fast; pages are given in tokens."""

    def __init__(self, page: int, table: TileTable) -> None:
        """Take the page size and the device's tuned tiles."""
        self._page, self._table = page, table

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> PageRows:
        """Return what the decode kernel reads; the same for every window."""
        return PageRows(rows_BP, positions_B)

    def tile_mask(
        self, rows_NP: Tensor, positions_NQ: Tensor, logical: Tensor, window: int | None
    ) -> PageRows:
        """Return what the prefill kernel reads; the same for every window."""
        return PageRows(rows_NP, positions_NQ)

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return decode attention for layers like `spec`."""
        page, table = self._page, self._table
        group = spec.heads // spec.kv_heads

        def attend(q_BHD: Tensor, k: Tensor, v: Tensor, mask: PageRows) -> Tensor:
            tile = table.decode(q_BHD.shape[0], group, spec.head_dim, spec.kv_heads)
            tile = tile._replace(BN=max(min(tile.BN, page), LEAST_KEYS))
            return paged_decode(
                q_BHD, (k, v), mask.pages_BP, mask.positions, page, spec.window, spec.scale, tile
            )

        return attend

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return prefill attention for layers like `spec`."""
        page = self._page
        tile = self._table.prefill(spec.head_dim)

        def attend(q_THD: Tensor, k: Tensor, v: Tensor, tiling: Tiling, mask: PageRows) -> Tensor:
            return paged_prefill(
                q_THD, (k, v), tiling.source, mask.positions, mask.pages_BP, page, spec.window,
                spec.scale, tile,
            )  # fmt: skip

        return attend
