"""What an attention back end offers: attention of single rows (decode) and of tiles (prefill)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import LayerSpec

RowKernel = Callable[[Tensor, Tensor, Tensor, Any], Tensor]
"""(q [B, H, D], K and V [1, G, n_pages * page, D], the back end's row mask) -> [B, H, D]."""

TileKernel = Callable[[Tensor, Tensor, Tensor, Tiling, Any], Tensor]
"""(q [T, H, D], K and V [1, G, n_pages * page, D], tiling, tile mask) -> [T, H, D]."""


class AttentionKernels(Protocol):
    """One back end; the same callable is returned for all layers of one shape."""

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> Any:
        """Return what `rows` kernels of one window need: a plain tuple of tensors.

        `rows` int32 are page-table rows, `positions` int64 those of the queries.
        """
        ...

    def tile_mask(
        self, rows_NP: Tensor, positions_NQ: Tensor, logical: Tensor, window: int | None
    ) -> Any:
        """Return what `tiles` kernels of one window need: a plain tuple of tensors.

        `rows` int32 is the page-table row of each tile, `positions` int64 are those of its queries
        (-1: padding), `logical` int32 [n_pages] is the column of every page.
        """
        ...

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return decode attention for layers like `spec`."""
        ...

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return prefill attention for layers like `spec`."""
        ...
