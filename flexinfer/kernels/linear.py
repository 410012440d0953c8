"""Leaves: linear maps as plain tuples of tensors, alone or as groups that share their input.

A leaf maps [T, in] to [T, out]; a group maps [T, in] to one output per member. LoRA and 4-bit
leaves take the place of `Dense` without a walker knowing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor
from torch.nn import functional as F


class Leaf(Protocol):
    """One linear map."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., rows]."""
        ...

    @property
    def rows(self) -> int:
        """Number of outputs."""
        ...

    @property
    def columns(self) -> int:
        """Number of inputs."""
        ...


class Group(Protocol):
    """Several linear maps of one input."""

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map [..., in] to one [..., rows] for each member."""
        ...

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of outputs of each member."""
        ...


class Dense(NamedTuple):
    """A plain linear map: `weight` [out, in], `bias` [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return self.weight.shape[0]

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return self.weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out] in one GEMM."""
        return F.linear(x, self.weight, self.bias)


class Packed(NamedTuple):
    """Members whose rows lie one after the other in one buffer: one GEMM; outputs are its views."""

    whole: Leaf
    widths: tuple[int, ...]

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map [..., in] to strided views of one output."""
        return tuple(self.whole(x).split_with_sizes(self.widths, -1))


class Separate(NamedTuple):
    """Members that lie anywhere: one GEMM each."""

    members: tuple[Leaf, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of outputs of each member."""
        return tuple(leaf.rows for leaf in self.members)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map [..., in] to one output for each member."""
        return tuple(leaf(x) for leaf in self.members)
