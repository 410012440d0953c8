"""Prefill by FlashAttention 4's varlen function, over pages; the rest is another back end's.

FA4 takes queries packed one after another and reads keys and values through a page table, so first
chunks, later chunks and shared prompts are one case and nothing is gathered or copied. Its causal
mask is aligned to the end: the last query of a sequence sees all of its keys.

Shape letters: T packed tokens, N tiles of Q queries, P page columns, H query heads, G kv heads,
D head dim.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from flexinfer.attention.kernel import AttentionKernels, RowKernel, TileKernel
from flexinfer.attention.masks import RowMask, Tiling
from flexinfer.attention.spans import Spans, spans_of
from flexinfer.attention.spec import LayerSpec

MANY = 256
"""Entries beyond which FA4 compiles another way to find the one that a block belongs to."""


class Varlen(Protocol):
    """What is used of flash_attn.cute.flash_attn_varlen_func."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        seqused_k: Tensor,
        page_table: Tensor,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int | None, int | None],
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Return [T, H, D], in newer betas beside the log-sum-exp or None.

        q is [T, H, D]; k and v are [n_pages, page, G, D] with any strides that are multiples of 16
        bytes; the three index tensors are int32 [N + 1], [N] and [N, P].
        """
        ...


class Fa4Kernels:
    """Tiles by FA4, rows by `base`; pages are given in tokens."""

    def __init__(self, base: AttentionKernels, varlen: Varlen, page: int) -> None:
        """Take the back end of decode and kept rows, FA4's function and the page size."""
        self._base, self._varlen, self._page = base, varlen, page

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> RowMask:
        """Return what the other back end's rows need."""
        mask: RowMask = self._base.row_mask(rows_BP, positions_B, window)
        return mask

    def tile_mask(
        self, rows_NP: Tensor, positions_NQ: Tensor, logical: Tensor, window: int | None
    ) -> Spans:
        """Return the chunks; the same for every window."""
        return spans_of(rows_NP, positions_NQ, self._page)

    def rows(self, spec: LayerSpec) -> RowKernel:
        """Return the other back end's decode attention."""
        return self._base.rows(spec)

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """Return FA4's attention for layers like `spec`."""
        varlen, page = self._varlen, self._page
        # a query sees itself and window - 1 positions to its left
        window = (None, None) if spec.window is None else (spec.window - 1, 0)

        def attend(q_THD: Tensor, k: Tensor, v: Tensor, tiling: Tiling, spans: Spans) -> Tensor:
            result = varlen(
                q_THD, paged(k, page), paged(v, page),
                cu_seqlens_q=spans.starts, seqused_k=spans.seen, page_table=spans.pages,
                softmax_scale=spec.scale, causal=True, window_size=window,
            )  # fmt: skip
            return result[0] if isinstance(result, tuple) else result

        return attend


def paged(pool: Tensor, page: int) -> Tensor:
    """Return a pool [1, G, n_pages * page, D] as a view [n_pages, page, G, D]."""
    heads, _, head_dim = pool.shape[1:]
    return pool.view(heads, -1, page, head_dim).permute(1, 2, 0, 3)
