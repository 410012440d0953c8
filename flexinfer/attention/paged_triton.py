"""The fast back end: an own Triton kernel for decode, compiled flex_attention for prefill tiles."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from flexinfer.attention.flex import FlexKernels
from flexinfer.attention.kernel import RowKernel, TileKernel
from flexinfer.attention.spec import LayerSpec
from flexinfer.kernels.fast.attention import paged_decode
from flexinfer.kernels.fast.table import TileTable


class RowTable(NamedTuple):
    """Page-table rows int32 [B, P] and int64 [B] positions: the kernel cuts windows itself."""

    pages_BP: Tensor
    positions_B: Tensor


class TritonKernels:
    """Decode by kernels.fast.attention; prefill by `tiles`."""

    mask_columns = 0

    def __init__(self, page: int, table: TileTable, tiles: FlexKernels) -> None:
        """Take the page size in tokens, the device's tuned tiles and a back end for prefill."""
        self._page, self._table, self._tiles = page, table, tiles

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> RowTable:
        """Return what the decode kernel reads; the same for every window."""
        return RowTable(rows_BP, positions_B)

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return decode attention for layers like `spec`."""
        page, table = self._page, self._table

        def attend(q_BHD: Tensor, k: Tensor, v: Tensor, mask: RowTable) -> Tensor:
            group, kv_heads = spec.heads // spec.kv_heads, spec.kv_heads
            tile = table.decode(q_BHD.shape[0], group, spec.head_dim, kv_heads)
            tile = tile._replace(BN=min(tile.BN, page))
            return paged_decode(
                q_BHD, (k, v), mask.pages_BP, mask.positions_B, page, spec.window, spec.scale, tile
            )

        return attend

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return prefill attention for layers like `spec`."""
        return self._tiles.tiles(spec)
