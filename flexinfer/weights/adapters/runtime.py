"""The runtime side path: adapters beside their bases, W x + B (A x), at fixed addresses.

The base is the trainer's own, nothing of it is rounded again, for the price of two small products a
group. A model in fp32 computes what PEFT does but for the order of sums. In a 16-bit model A and
scale B are rounded to its dtype, as is A x; PEFT keeps LoRA weights in fp32 there unless told not
to (autocast_adapter_dtype), and rounds the sum alone.

Members of a group share one stack of A; B of each is zero outside its own ranks, with the scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.errors import UsageError
from flexinfer.kernels.linear import Leaf
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import Matrix, Nf4
from flexinfer.models.source import Source
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.many import copy_all, scaled_all
from flexinfer.weights.adapters.targets import apart, grouped, matrix

AT_ONCE = 32
"""Pairs whose B are multiplied by their scales at a time: the products are copies."""


class Side(NamedTuple):
    """Where a target's adapter goes: views of A [r, K] and B [N, r], and a bias of its own."""

    a: Tensor
    b: Tensor
    bias: Tensor | None


class RuntimeWeights:
    """Side paths of the linear maps in every group that has a target."""

    def __init__(self, source: Source, linears: Iterable[str], adapter: Adapter) -> None:
        """Allocate A and B for the adapter's targets and ranks; fill them by `load`."""
        self._like = source.tensor("embed_tokens.weight")
        self._biases: dict[str, Tensor | None] = {}
        self._leaves: dict[str, Adapted] = {}
        self._sides: dict[str, Side] = {}
        for names in grouped(linears):
            ranks = {n: len(adapter.pairs[n].a) if n in adapter.pairs else 0 for n in names}
            if any(ranks.values()):
                self._place({name: matrix(source, name) for name in names}, ranks)

    def _place(self, bases: dict[str, Matrix], ranks: dict[str, int]) -> None:
        """Lay out a group: one A over all ranks, one B over all rows, in the compute dtype."""
        rows, total, at = [leaf.rows for leaf in bases.values()], sum(ranks.values()), 0
        a = self._like.new_zeros(total, next(iter(bases.values())).columns)
        b = self._like.new_zeros(sum(rows), total)
        placed = side_by_side(list(bases.values()))
        for name, base, own in zip(bases, placed, torch.split(b, rows), strict=True):
            self._biases[name] = bases[name].bias
            self._leaves[name] = Adapted(base, a, own, tuple(ranks.values()))
            end = at + ranks[name]
            self._sides[name] = Side(a[at:end], own[:, at:end], base.bias)
            at = end

    def leaf(self, name: str) -> Leaf | None:
        """Return the leaf with the side path of a linear map, None where there is none."""
        return self._leaves.get(name)

    @property
    def n_bytes(self) -> int:
        """Bytes of A and B, zeros included."""
        shared = {leaf.a.data_ptr(): leaf.a.nbytes for leaf in self._leaves.values()}
        return sum(shared.values()) + sum(leaf.b.nbytes for leaf in self._leaves.values())

    def lacking(self, adapter: Adapter) -> list[str]:
        """Return the adapter's targets that have no side path."""
        return sorted(name for name in adapter.pairs if name not in self._sides)

    def load(self, adapter: Adapter) -> None:
        """Copy A and scaled B into place, in stream order; a smaller rank leaves zeros.

        Raises UsageError, before anything is written, for a rank that there is no room for.
        """
        used = self._used(adapter)
        with torch.no_grad():
            for name, side in self._sides.items():
                _clear(side, self._biases[name], adapter.pairs.get(name))
            copy_all([side.a for side, _ in used], [pair.a for _, pair in used])
            for first in range(0, len(used), AT_ONCE):
                some = used[first : first + AT_ONCE]
                scaled = scaled_all([(self._wide(pair.b), float(pair.scale)) for _, pair in some])
                copy_all([side.b for side, _ in some], scaled)

    def _used(self, adapter: Adapter) -> list[tuple[Side, Pair]]:
        """Return where each pair goes, as far as its rank; raises UsageError for lack of room."""
        used = []
        for name, pair in adapter.pairs.items():
            side, rank = self._sides.get(name), pair.a.shape[0]
            room = 0 if side is None else side.a.shape[0]
            if side is None or rank > room:
                raise UsageError(
                    f"{name} of the adapter has rank {rank}; the engine was built for {room}",
                    hint="build the engine anew for a larger rank",
                )
            used.append((side if rank == room else _narrow(side, rank), pair))
        return used

    def _wide(self, b: Tensor) -> Tensor:
        """Return B in a dtype in which it can be scaled: its product is rounded once."""
        return b if b.dtype in (self._like.dtype, torch.float32) else b.float()


def _narrow(side: Side, rank: int) -> Side:
    """Return where an adapter of a smaller rank goes."""
    return Side(side.a[:rank], side.b[:, :rank], side.bias)


def _clear(side: Side, bias: Tensor | None, pair: Pair | None) -> None:
    """Zero the ranks that an adapter does not use, and set the bias; `bias` is the base's."""
    used = 0 if pair is None else pair.a.shape[0]
    if used < side.a.shape[0]:
        side.a[used:].zero_()
        side.b[:, used:].zero_()
    if side.bias is not None and bias is not None:
        side.bias.copy_(bias if pair is None or pair.bias is None else pair.bias)


def side_by_side(bases: Sequence[Matrix]) -> list[Matrix]:
    """Return bases that have biases of their own, adjacent, where they have any.

    Scales of 4-bit weights come to lie so, too: a group's one leaf and its members share them.
    """
    biases = [leaf.bias for leaf in bases if leaf.bias is not None]
    held = iter(apart(biases) if biases else ())
    found = [leaf if leaf.bias is None else leaf._replace(bias=next(held)) for leaf in bases]
    packed = [leaf for leaf in found if isinstance(leaf, Nf4)]
    if len(packed) < len(found):
        return found
    scales = torch.split(torch.cat([leaf.absmax for leaf in packed]), [x.rows for x in packed])
    return [leaf._replace(absmax=own) for leaf, own in zip(packed, scales, strict=True)]
