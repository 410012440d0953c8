"""The plain operations with products of one fixed shape: a row's result whatever the others are.

A matrix library picks its kernel, and with it the order in which it sums, by the number of rows. So
rows go through in blocks of BLOCK, the last one filled up with zeros; activations too, whose vector
and scalar forms round differently.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flexinfer.kernels.heads import HeadNorms, KVStore, heads
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.mlp import activate, gated
from flexinfer.kernels.ops import PlainOps, Projected
from flexinfer.kernels.rope import Rope

BLOCK = 32


def blockwise(x: Tensor, leaf: Callable[[Tensor], Tensor]) -> Tensor:
    """Map [T, in] to [T, out], BLOCK rows at a time."""
    rows = x.shape[0]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % BLOCK))
    return torch.cat([leaf(part) for part in torch.split(padded, BLOCK)] or [leaf(x)])[:rows]


def members(x: Tensor, group: Group) -> tuple[Tensor, ...]:
    """Map [T, in] to one [T, rows] for each member of a group."""

    def joined(part: Tensor) -> Tensor:
        return torch.cat(group(part), -1)

    return tuple(blockwise(x, joined).split_with_sizes(group.widths, -1))


class InvariantOps(PlainOps):
    """See kernels.ops.Ops; what is not overridden works row by row as it is."""

    def project(self, x: Tensor, leaf: Leaf) -> Projected:
        """See Ops."""
        return blockwise(x, leaf)

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops."""
        return heads(members(x, group), head_dim, norms, rope, kv)

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """See Ops."""

        def inner(part: Tensor) -> Tensor:
            gate, up = gate_up(part)
            return gated(gate, up, activation)

        return blockwise(x, inner)

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """See Ops."""
        return blockwise(x, lambda part: activate(gate(part), activation)) * extra_TP

    def linear(self, x: Tensor, leaf: Leaf) -> Tensor:
        """See Ops."""
        return blockwise(x, leaf)

    def head(self, x: Tensor, leaf: Leaf, cap: float | None) -> Tensor:
        """See Ops."""
        logits = blockwise(x, leaf)
        return logits if cap is None else torch.tanh(logits / cap) * cap
