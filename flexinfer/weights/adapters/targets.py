"""Which linear maps an adapter can change: those a walker asks for, and how they are grouped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flexinfer.kernels.linear import Dense, Leaf
from flexinfer.kernels.nf4 import Matrix, Nf4
from flexinfer.models.catalog import build_decoder
from flexinfer.models.source import ModuleSource, Source
from flexinfer.weights.pack import GROUPS

if TYPE_CHECKING:
    from flexinfer.models.decoder import Decoder

Targets = Mapping[str, tuple[int, int]]
"""(out, in) of linear maps, by name relative to the text model's root."""

HEAD = "lm_head"
"""The head is often tied to the embeddings, which are never copied; no adapter changes it."""


class Listening(ModuleSource):
    """A source that remembers in `heard` which linear maps a walker asked for."""

    def __init__(self, module: nn.Module, root: str) -> None:
        """See ModuleSource."""
        super().__init__(module, root)
        self.heard: dict[str, tuple[int, int]] = {}

    def linear(self, name: str) -> Leaf:
        """See Source."""
        leaf = super().linear(name)
        if name != HEAD:
            self.heard[name] = (leaf.rows, leaf.columns)
        return leaf


def listened(module: Any) -> tuple[Decoder, Listening]:
    """Return the decoder of a causal language model, and what was listened to as it was built."""
    sources: list[Listening] = []

    def listen(inner: nn.Module, root: str) -> Listening:
        sources.append(Listening(inner, root))
        return sources[-1]

    return build_decoder(module, listen), sources[0]


def grouped(linears: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names that share an input, in packing order; a map of its own stands alone."""
    known = dict.fromkeys(linears)
    for name in known:
        own = name.rpartition(".")[2]
        at = name.removesuffix(own)
        mates = next((group for group in GROUPS if own in group), (own,))
        names = tuple(at + mate for mate in mates if at + mate in known)
        if name == names[0]:
            yield names


def matrix(source: Source, name: str) -> Matrix:
    """Return the base of a target."""
    leaf = source.linear(name)
    assert isinstance(leaf, Dense | Nf4), f"{name} is no matrix"
    return leaf


def apart(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Return uninitialised tensors of the same shapes, adjacent in one buffer."""
    rows, first = [tensor.shape[0] for tensor in tensors], tensors[0]
    return torch.split(first.new_empty(sum(rows), *first.shape[1:]), rows)
