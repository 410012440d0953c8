"""Merged inference weights: a second copy of an adapter's targets, at fixed addresses.

Each refresh computes the copy anew from the pristine base, base + scale (B A), so nothing ever adds
up and nothing is unmerged. Members of a packed group share one buffer, as their bases do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.errors import NotEnoughMemory
from flexinfer.kernels.linear import Dense, Leaf
from flexinfer.kernels.lora import merge
from flexinfer.kernels.nf4 import Matrix, Nf4
from flexinfer.models.source import Source
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.targets import apart, grouped, matrix
from flexinfer.weights.place import require_memory

COPIES, CURE = "the merged copies of the adapter's targets", "--lora-mode runtime keeps no copies"


class Merge(NamedTuple):
    """How weights are merged: forms of kernels.lora.merge and of kernels.nf4.Nf4.weight.

    `add(base [N, K], a [R, K], b [N, R], scale, out [N, K])`; `unpack` makes a 4-bit base whole.
    """

    add: Callable[[Tensor, Tensor, Tensor, float, Tensor], None] = merge
    unpack: Callable[[Nf4], Tensor] = Nf4.weight


class MergedWeights:
    """Copies of the linear maps in every group that has a target; the head is never among them."""

    def __init__(
        self, source: Source, linears: Iterable[str], adapter: Adapter, form: Merge | None = None
    ) -> None:
        """Allocate the copies for the adapter's targets among `linears`; fill them by `load`.

        Raises NotEnoughMemory where they do not fit.
        """
        self._form = form or Merge()
        self._bases: dict[str, Matrix] = {}
        self._copies: dict[str, Dense] = {}
        held = [names for names in grouped(linears) if any(name in adapter.pairs for name in names)]
        groups = [{name: matrix(source, name) for name in names} for names in held]
        device = source.tensor("embed_tokens.weight").device
        require_memory(sum(map(_copied_bytes, groups)), device, COPIES, CURE)
        try:
            for group in groups:
                self._copy(group)
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(f"{COPIES} do not fit on {device}", hint=CURE) from error

    def _copy(self, bases: Mapping[str, Matrix]) -> None:
        """Make one buffer for the members of a group (and one for their biases)."""
        rows, first = [leaf.rows for leaf in bases.values()], next(iter(bases.values()))
        like = first.weight if isinstance(first, Dense) else first.absmax.to(first.dtype)
        weights = torch.split(like.new_empty(sum(rows), first.columns), rows)
        biases = [leaf.bias for leaf in bases.values() if leaf.bias is not None]
        held = iter(apart(biases)) if biases else iter(())
        for (name, base), weight in zip(bases.items(), weights, strict=True):
            self._bases[name] = base
            self._copies[name] = Dense(weight, None if base.bias is None else next(held))

    def leaf(self, name: str) -> Leaf | None:
        """Return the inference leaf of a linear map, None where its base is used itself."""
        return self._copies.get(name)

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(leaf.weight.nbytes for leaf in self._copies.values())

    def lacking(self, adapter: Adapter) -> list[str]:
        """Return the adapter's targets that have no copy."""
        return sorted(set(adapter.pairs) - set(self._copies))

    def load(self, adapter: Adapter) -> None:
        """Compute every copy from its pristine base and the adapter, in place, in stream order."""
        with torch.no_grad():
            for name, (weight, bias) in self._copies.items():
                base, pair = self._bases[name], adapter.pairs.get(name)
                pristine = base.weight if isinstance(base, Dense) else self._form.unpack(base)
                if pair is None:
                    weight.copy_(pristine)
                else:
                    self._form.add(pristine, pair.a, pair.b, pair.scale, weight)
                if bias is not None and base.bias is not None:
                    bias.copy_(base.bias if pair is None or pair.bias is None else pair.bias)


def _copied_bytes(group: Mapping[str, Matrix]) -> int:
    """Return the bytes of the weights of a group's copy."""
    dtypes = [x.weight.dtype if isinstance(x, Dense) else x.dtype for x in group.values()]
    sizes = [leaf.rows * leaf.columns for leaf in group.values()]
    return sum(size * dtype.itemsize for size, dtype in zip(sizes, dtypes, strict=True))
