"""An adapter in memory: low-rank deltas of linear maps, whoever made them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Pair(NamedTuple):
    """The delta of one linear map, `scale * b @ a`, and the bias that goes with it.

    a [r, in] and b [out, r] are fp32, bf16 or fp16 as they were given; a live adapter's share
    storage with the trainer's. `bias` [out] takes the place of the base's, where it was trained.
    """

    a: Tensor
    b: Tensor
    scale: float
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Adapter:
    """Pairs by checkpoint name relative to the text model's root, and what to tell the user.

    `name` is what the user called it. A linear map whose bias alone was trained has a pair of
    zeros of rank 1.
    """

    name: str
    pairs: Mapping[str, Pair]
    notices: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max((pair.a.shape[0] for pair in self.pairs.values()), default=0)

    def sha(self) -> str:
        """Return the hex sha256 over names, shapes, dtypes, bytes and scales.

        Neither the order of the pairs, nor the device, nor the layout in memory counts.
        """
        whole = hashlib.sha256()
        for name, pair in sorted(self.pairs.items()):
            whole.update(f"{name} {pair.scale.hex()}\n".encode())
            for part, tensor in _tensors(pair):
                whole.update(f"{part} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                raw = tensor.detach().cpu().flatten().view(torch.uint8)
                whole.update(raw.numpy().tobytes())
        return whole.hexdigest()


def _tensors(pair: Pair) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a pair by name."""
    yield "a", pair.a
    yield "b", pair.b
    if pair.bias is not None:
        yield "bias", pair.bias
