"""Compiled flex_attention over pages: the portable back end.

Un-compiled flex_attention evaluates the mask densely and ignores page lists, so it is never called
uncompiled here. On CUDA a decode kernel is asserted (`BACKEND="TRITON_DECODE"`), never hoped for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    BlockMask,
    FlexKernelOptions,
    _mask_mod_signature,
    flex_attention,
)
from torch.nn.functional import pad

from flexinfer.attention.kernel import RowKernel, TileKernel
from flexinfer.attention.masks import RowMask, TileMask, Tiling, row_mask, tile_mask
from flexinfer.attention.spec import LayerSpec

DECODE_Q_BLOCK = 128


class Shape(NamedTuple):
    """What a compiled kernel is specialised on; `group` is query heads a kv head, padded."""

    page: int
    n_pages: int
    window: int | None
    scale: float
    heads: int
    kv_heads: int
    head_dim: int
    on_cuda: bool


class FlexKernels:
    """flex_attention compiled once per layer shape; layers of one shape share the callable."""

    def __init__(
        self,
        page: int,
        n_pages: int,
        on_cuda: bool,
        decode_options: Callable[[int], Mapping[str, Any]],
        prefill_options: Callable[[int], Mapping[str, Any]],
    ) -> None:
        """`decode_options` and `prefill_options` give kernel options for a head_dim."""
        self._page, self._n_pages, self._on_cuda = page, n_pages, on_cuda
        self._options = {"rows": decode_options, "tiles": prefill_options}
        self._compiled: dict[tuple[str, Shape], Any] = {}
        self._columns = 0 if on_cuda else n_pages  # the CPU kernel wants page lists that long

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> RowMask:
        """Return page lists cut at both ends."""
        return row_mask(rows_BP, positions_B, self._page, window, self._columns)

    def tile_mask(
        self, rows_NP: Tensor, positions_NQ: Tensor, logical: Tensor, window: int | None
    ) -> TileMask:
        """Return page lists and positions."""
        return tile_mask(rows_NP, positions_NQ, logical, self._page, window, self._columns)

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return decode attention for layers like `spec`."""
        kernel: RowKernel = self._get("rows", spec)
        return kernel

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return prefill attention for layers like `spec`."""
        kernel: TileKernel = self._get("tiles", spec)
        return kernel

    def _get(self, kind: str, spec: LayerSpec) -> Any:
        """Build the kernel of (kind, shape) at first use."""
        window = spec.window
        shape = Shape(
            self._page, self._n_pages, window, spec.scale, spec.heads, spec.kv_heads,
            spec.head_dim, self._on_cuda,
        )  # fmt: skip
        if (kind, shape) not in self._compiled:
            options = dict(self._options[kind](spec.head_dim))
            build = _build_rows if kind == "rows" else _build_tiles
            self._compiled[kind, shape] = build(shape, options)
        return self._compiled[kind, shape]


def _block_mask(
    mask: RowMask | TileMask, seen: _mask_mod_signature, shape: Shape, queries: int, q_block: int
) -> BlockMask:
    """Wrap page lists; the CPU kernel wants full-block lists too, CUDA's is faster without."""
    return BlockMask.from_kv_blocks(
        mask.counts,
        mask.pages,
        None if shape.on_cuda else torch.zeros_like(mask.counts),
        None if shape.on_cuda else torch.zeros_like(mask.pages),
        BLOCK_SIZE=(q_block, shape.page),
        mask_mod=seen,
        seq_lengths=(queries, shape.n_pages * shape.page),
        compute_q_blocks=False,
    )


def _row_attention(
    shape: Shape, options: dict[str, Any], q_BH1D: Tensor, k: Tensor, v: Tensor, mask: RowMask
) -> Tensor:
    """Attend one query a row; to be compiled."""
    page = shape.page

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        inside = (kv // page != mask.last_page[b]) | (kv % page <= mask.last_offset[b])
        if shape.window is None:
            return inside
        return inside & ((kv // page != mask.first_page[b]) | (kv % page >= mask.first_offset[b]))

    block_mask = _block_mask(mask, seen, shape, 1, DECODE_Q_BLOCK)
    return _call_flex(q_BH1D, k, v, block_mask, shape.scale, options)


def _tile_attention(
    shape: Shape, options: dict[str, Any], q_NHQD: Tensor, k: Tensor, v: Tensor, mask: TileMask
) -> Tensor:
    """Attend a tile of queries of one sequence each; to be compiled."""
    page = shape.page

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        query = mask.positions[b, q]
        key = mask.logical[kv // page] * page + kv % page
        inside = key <= query
        return inside if shape.window is None else inside & (query - key < shape.window)

    tile = q_NHQD.shape[2]
    block_mask = _block_mask(mask, seen, shape, tile, tile)
    return _call_flex(q_NHQD, k, v, block_mask, shape.scale, options)


def _call_flex(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float, options: dict[str, Any]
) -> Tensor:
    """Call flex_attention with grouped heads."""
    out = flex_attention(
        q,
        k,
        v,
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
        kernel_options=cast(FlexKernelOptions, options) or None,
    )
    assert isinstance(out, Tensor)
    return out


def _build_rows(shape: Shape, options: dict[str, Any]) -> RowKernel:
    """Compile decode attention; groups of q heads are padded to a power of two for the kernel."""
    attend = torch.compile(partial(_row_attention, shape, options), fullgraph=True, dynamic=False)
    group = shape.heads // shape.kv_heads
    padded = 1 << (group - 1).bit_length() if shape.on_cuda else group

    def rows(q_BHD: Tensor, k: Tensor, v: Tensor, mask: RowMask) -> Tensor:
        batch = q_BHD.shape[0]
        q = q_BHD.reshape(batch, shape.kv_heads, group, shape.head_dim)
        q = pad(q, (0, 0, 0, padded - group)) if padded != group else q
        q = q.reshape(batch, shape.kv_heads * padded, 1, shape.head_dim).contiguous()
        if not shape.on_cuda:
            q, mask = _any_batch(q, mask, RowMask)
        out = attend(q, k, v, mask)[:batch, :, 0]
        grouped = out.view(batch, shape.kv_heads, padded, shape.head_dim)
        return grouped[:, :, :group].flatten(1, 2)

    return rows


def _build_tiles(shape: Shape, options: dict[str, Any]) -> TileKernel:
    """Compile prefill attention, for any number of tiles at once."""
    attend = torch.compile(partial(_tile_attention, shape, options), fullgraph=True, dynamic=False)

    def tiles(q_THD: Tensor, k: Tensor, v: Tensor, tiling: Tiling, mask: TileMask) -> Tensor:
        tiled = tiling.tiled(q_THD)
        q, mask = _any_batch(tiled.transpose(1, 2).contiguous(), mask, TileMask)
        return tiling.packed(attend(q, k, v, mask)[: tiled.shape[0]].transpose(1, 2))

    return tiles


def _any_batch(q: Tensor, mask: Any, kind: Any) -> tuple[Tensor, Any]:
    """Mark the batch dimension dynamic; a batch of one is doubled, as size 1 always specialises."""
    logical = {"logical"}
    fields = mask._asdict()
    if q.shape[0] == 1:
        q = q.expand(2, *q.shape[1:]).contiguous()
        fields = {
            name: value if name in logical else value.expand(2, *value.shape[1:]).contiguous()
            for name, value in fields.items()
        }
    for tensor in (q, *(value for name, value in fields.items() if name not in logical)):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return q, kind(**fields)
