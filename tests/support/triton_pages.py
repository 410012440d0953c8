"""Sequences scattered over a pool whose every other place is poison.

Shape letters: B sequences, S tokens of the longest, H query heads, G kv heads, D head dim, P page
columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flexinfer.attention.spec import LayerSpec
from tests.support.brute import attend
from tests.support.triton_interpreter import normal


def spec_of(
    heads: int = 4, kv_heads: int = 2, head_dim: int = 64, window: int | None = None
) -> LayerSpec:
    """Return a layer of these sizes; its scale is none that a kernel might assume."""
    return LayerSpec(
        index=0, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=0.9 * head_dim**-0.5,
        window=window, kv_layer=0,
    )  # fmt: skip


@dataclass
class Scattered:
    """Sequences that are attended to from the positions `first` to `last` (both seen) of each.

    Whatever no such query may see is `poison`: positions before the window and after the last, the
    pages that belong to nobody, and those of table columns that are not in use.
    """

    spec: LayerSpec
    first: tuple[int, ...]
    last: tuple[int, ...]
    page: int
    spare: int = 2
    poison: float = torch.nan

    @cached_property
    def keys_values(self) -> tuple[Tensor, Tensor]:
        """K and V [B, G, S, D] in order of positions."""
        shape = (len(self.last), self.spec.kv_heads, max(self.last) + 1, self.spec.head_dim)
        return normal(*shape, seed=1), normal(*shape, seed=2)

    @cached_property
    def table(self) -> Tensor:
        """Page-table rows int32 [B, P], `spare` columns wider than the longest needs."""
        columns = max(self.last) // self.page + 1
        generator = torch.Generator().manual_seed(3)
        order = torch.randperm(len(self.last) * columns, generator=generator) + 1
        used = order.view(len(self.last), columns)
        return torch.nn.functional.pad(used, (0, self.spare)).int()

    @cached_property
    def pools(self) -> tuple[Tensor, Tensor]:
        """K and V pools [1, G, N, D]."""
        pages = int(self.table.max()) + 1
        shape = (1, self.spec.kv_heads, pages * self.page, self.spec.head_dim)
        pools = (torch.full(shape, self.poison), torch.full(shape, self.poison))
        for row, (first, last) in enumerate(zip(self.first, self.last, strict=True)):
            start = 0 if self.spec.window is None else max(first - self.spec.window + 1, 0)
            seen = torch.arange(start, last + 1)
            at = self.table[row, seen // self.page].long() * self.page + seen % self.page
            for pool, values in zip(pools, self.keys_values, strict=True):
                pool[0, :, at] = values[row, :, seen]
        return pools

    def expected(self, row: int, position: int, q_HD: Tensor) -> Tensor:
        """Return what a query [H, D] at `position` of a sequence gets, by definition."""
        k, v = self.keys_values
        return attend(q_HD, k[row], v[row], position, self.spec)
