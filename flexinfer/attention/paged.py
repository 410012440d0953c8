"""The hole of a step, filled: write keys and values to their pages, then attend by a kernel.

Shape letters: T packed tokens, B rows, N tiles of Q queries, P page columns, H query heads,
G kv heads, D head dim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexinfer.attention.cache import PagedKVCache
from flexinfer.attention.kernel import AttentionKernels, RowKernel, TileKernel
from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import Attend, LayerAttend, LayerSpec


def store(pool: Tensor, values_TGD: Tensor, address_T: Tensor) -> None:
    """Write [T, G, D] to the positions `address` (int64) of a pool [1, G, n_pages * page, D]."""
    torch.ops.aten.index_put_(pool, [None, None, address_T], values_TGD.transpose(0, 1)[None])


def addresses(rows_TP: Tensor, positions_T: Tensor, page: int) -> Tensor:
    """Return where in a pool the KV of each position lies: int64 [T]."""
    column = positions_T // page
    pages = rows_TP.gather(1, column[:, None])[:, 0]
    return pages.long() * page + positions_T % page


class Pages:
    """A layer's pools and the rows of them that a step writes to; a plain holder of tensors."""

    def __init__(self, pools: tuple[Tensor, Tensor], address_T: Tensor) -> None:
        """Hold the K and V pools [1, G, N, D] and int64 [T] addresses."""
        self.k, self.v = pools
        self.address_T = address_T

    def store(self, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """Write the step's keys and values to their pages."""
        store(self.k, k_TGD, self.address_T)
        store(self.v, v_TGD, self.address_T)

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return pools and addresses, for a kernel that writes by itself."""
        return (self.k, self.v), self.address_T


class RowLayer(Pages):
    """Decode attention of one layer."""

    def __init__(
        self, pools: tuple[Tensor, Tensor], address_B: Tensor, kernel: RowKernel, mask: Any
    ) -> None:
        """Hold the layer's pools, the step's addresses and the mask of the layer's window."""
        super().__init__(pools, address_B)
        self.kernel, self.mask = kernel, mask

    def __call__(self, q_BHD: Tensor) -> Tensor:
        """Attend: [B, H, D]."""
        return self.kernel(q_BHD, self.k, self.v, self.mask)


class TileLayer(Pages):
    """Prefill attention of one layer."""

    def __init__(
        self,
        pools: tuple[Tensor, Tensor],
        address_T: Tensor,
        tiling: Tiling,
        kernel: TileKernel,
        mask: Any,
    ) -> None:
        """Hold the layer's pools, the step's addresses and tiling, and the window's mask."""
        super().__init__(pools, address_T)
        self.tiling, self.kernel, self.mask = tiling, kernel, mask

    def __call__(self, q_THD: Tensor) -> Tensor:
        """Attend: [T, H, D]."""
        return self.kernel(q_THD, self.k, self.v, self.tiling, self.mask)


class RowInputs(NamedTuple):
    """What a decode step's attention needs beside the cache: KV addresses and a mask a window."""

    address_B: Tensor
    masks: tuple[Any, ...]


def row_inputs(
    rows_BP: Tensor,
    positions_B: Tensor,
    page: int,
    windows: tuple[int | None, ...],
    kernels: AttentionKernels,
) -> RowInputs:
    """Build the inputs from page-table rows and the int64 positions whose KV is written now."""
    masks = tuple(kernels.row_mask(rows_BP, positions_B, window) for window in windows)
    return RowInputs(addresses(rows_BP, positions_B, page), masks)


class RowStep:
    """A decode step: one query a sequence; `windows` are the distinct windows, as in `inputs`."""

    def __init__(
        self,
        cache: PagedKVCache,
        kernels: AttentionKernels,
        inputs: RowInputs,
        windows: tuple[int | None, ...],
    ) -> None:
        """Take the step's inputs."""
        self._cache, self._kernels = cache, kernels
        self._address_B = inputs.address_B
        self._masks = dict(zip(windows, inputs.masks, strict=True))

    def __call__(self, spec: LayerSpec) -> LayerAttend:
        """Bind one layer."""
        kernel = self._kernels.rows(spec)
        pools = self._cache.layer(spec)
        return RowLayer(pools, self._address_B, kernel, self._masks[spec.window])

    def kept(self) -> Attend:
        """Return itself: every row of a decode step is kept."""
        return self


class TileStep:
    """A prefill step: tiles of queries; `kept` are the rows whose logits are wanted."""

    def __init__(
        self,
        cache: PagedKVCache,
        kernels: AttentionKernels,
        address_T: Tensor,
        tiling: Tiling,
        masks: dict[int | None, Any],
        kept: Attend,
    ) -> None:
        """Take what `prefill_masks` and the batch builder made for this step."""
        self._cache, self._kernels = cache, kernels
        self._address_T, self._tiling, self._masks, self._kept = address_T, tiling, masks, kept

    def __call__(self, spec: LayerSpec) -> LayerAttend:
        """Bind one layer."""
        kernel, mask = self._kernels.tiles(spec), self._masks[spec.window]
        return TileLayer(self._cache.layer(spec), self._address_T, self._tiling, kernel, mask)

    def kept(self) -> Attend:
        """Return the step narrowed to the kept rows, as single queries."""
        return self._kept


def prefill_masks(
    rows_NP: Tensor,
    positions_NQ: Tensor,
    logical: Tensor,
    windows: tuple[int | None, ...],
    kernels: AttentionKernels,
) -> dict[int | None, Any]:
    """Build one tile mask per distinct window."""
    return {w: kernels.tile_mask(rows_NP, positions_NQ, logical, w) for w in windows}
