"""Low-rank adapters: the side path of a linear map, and the merge into a copy of its weight.

Hu et al. 2021, "LoRA": W x + scale B (A x). Shape letters: N outputs, K inputs, R ranks (of all
members of a group, one after the other).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.linear import Leaf

BLOCK = 1 << 24
"""Numbers of a weight that are merged at a time, in fp32: 64 MiB each for weight and delta."""


class Adapted(NamedTuple):
    """A leaf with a side path: base(x) + (x a^T) b^T; `a` [R, K], `b` [N, R] with the scale in it.

    Members of a group share one `a`; each has the rows of `b` that are its own, zero outside the
    columns of its own ranks. `ranks` are those of a group's members, in order; () for a leaf that
    is no whole group: then no column of `b` is known to be zero.
    """

    base: Leaf
    a: Tensor
    b: Tensor
    ranks: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return self.base.rows

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return self.base.columns

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.rows, self.columns

    def blocks(self, widths: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return outputs and ranks of each block on the diagonal of `b`; `widths` are a group's."""
        if widths and len(widths) == len(self.ranks):
            return widths, self.ranks
        return (self.rows,), (self.a.shape[0],)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., K] to [..., N]; in 16 bits x a^T and both summands are rounded to the dtype."""
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


def merge(base_NK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, out_NK: Tensor) -> None:
    """Write base + scale (b a) to `out`, computed in fp32 and rounded once to its dtype."""
    a = a_RK.float()
    step = max(1, BLOCK // base_NK.shape[1])
    parts = (torch.split(tensor, step) for tensor in (base_NK, b_NR, out_NK))
    for base, b, out in zip(*parts, strict=True):
        out.copy_(torch.addmm(base.float(), b.float(), a, alpha=scale))
