"""The paged KV cache: one K and one V tensor for every layer that owns keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flexinfer.attention.spec import LayerSpec
from flexinfer.attention.tables import upload
from flexinfer.core.pages import PageCopy


def bytes_per_page(specs: Sequence[LayerSpec], page_size: int, dtype: torch.dtype) -> int:
    """Return the bytes that one page takes over all layers that own KV (K and V together)."""
    values = sum(2 * spec.kv_heads * spec.head_dim for spec in specs if spec.owns_kv)
    return values * page_size * dtype.itemsize


class PagedKVCache:
    """K and V of shape [1, G, n_pages * page_size, D] for every kv layer; page 0 is scratch.

    The tensors start as zeros: a masked position is multiplied by zero, and zero times a NaN that
    happened to lie in fresh memory would still be a NaN.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        n_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the pools of every spec that owns KV."""
        self.n_pages = n_pages
        self.page_size = page_size
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}
        for spec in specs:
            if spec.owns_kv:
                shape = (1, spec.kv_heads, n_pages * page_size, spec.head_dim)
                k = torch.zeros(shape, dtype=dtype, device=device)
                self._pools[spec.index] = (k, torch.zeros_like(k))

    def layer(self, spec: LayerSpec) -> tuple[Tensor, Tensor]:
        """Return (K, V) of the cache that `spec` reads."""
        return self._pools[spec.kv_layer]

    @property
    def n_bytes(self) -> int:
        """Bytes that the pools hold now."""
        return sum(t.untyped_storage().nbytes() for pair in self._pools.values() for t in pair)

    def release(self) -> None:
        """Give the memory of every pool back; nothing may be read or written until `restore`."""
        for tensor in (t for pair in self._pools.values() for t in pair):
            tensor.untyped_storage().resize_(0)

    def restore(self) -> bool:
        """Take the memory again, as zeros, where it was given back; return whether a pool moved."""
        moved = False
        for tensor in (t for pair in self._pools.values() for t in pair):
            storage = tensor.untyped_storage()
            if storage.nbytes():
                continue
            storage.resize_(tensor.numel() * tensor.itemsize)
            tensor.zero_()
            moved = True  # to an address that may be another
        return moved

    def __len__(self) -> int:
        """Return the number of layers that own a cache."""
        return len(self._pools)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy the beginnings of pages, K and V of every layer; all are read before any is written.

        What lies behind stays as it is: a NaN there would spoil even who does not attend to it.
        """
        if not copies:
            return
        pages = np.array([copy[:2] for copy in copies], dtype=np.int64).repeat(
            [copy.tokens for copy in copies], axis=0
        )
        offset = np.concatenate([np.arange(copy.tokens) for copy in copies])
        device = next(iter(self._pools.values()))[0].device
        source, target = upload(pages.T * self.page_size + offset, device)
        for pool in (tensor for pair in self._pools.values() for tensor in pair):
            pool[:, :, target] = pool[:, :, source]
