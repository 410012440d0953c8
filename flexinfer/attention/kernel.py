"""What an attention back end offers: attention of single rows (decode) and of tiles (prefill)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from flexinfer.attention.masks import TileMask
from flexinfer.attention.spec import LayerSpec

RowKernel = Callable[[Tensor, Tensor, Tensor, Any], Tensor]
"""(q [B, H, D], K and V [1, G, n_pages * page, D], the back end's row mask) -> [B, H, D]."""

TileKernel = Callable[[Tensor, Tensor, Tensor, TileMask], Tensor]
"""(q [N, Q, H, D], K and V [1, G, n_pages * page, D], mask) -> [N, Q, H, D]."""


class AttentionKernels(Protocol):
    """One back end; the same callable is returned for all layers of one shape.

    `mask_columns` is how wide page lists must be (0: no wider than the table).
    """

    mask_columns: int

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> Any:
        """Return what `rows` kernels of one window need: a plain tuple of tensors.

        `rows` int32 are page-table rows, `positions` int64 those of the queries.
        """
        ...

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return decode attention for layers like `spec`."""
        ...

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return prefill attention for layers like `spec`."""
        ...
