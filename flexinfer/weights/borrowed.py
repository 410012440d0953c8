"""Where the tensors of a borrowed module lie, and whether they still do."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from flexinfer.errors import StaleWeights
from flexinfer.models.source import base_tensors


class Place(NamedTuple):
    """Address, dtype, shape and strides of a tensor."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def place_of(tensor: Tensor) -> Place:
    """Return where a tensor lies."""
    return Place(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


class Borrowed:
    """Remembers where every tensor of a module lay when an engine was built over it."""

    def __init__(self, module: nn.Module) -> None:
        """Take the places of parameters and buffers; nothing is copied."""
        self._module = module
        self._places = {name: place_of(tensor) for name, tensor in base_tensors(module).items()}

    def check(self) -> None:
        """Raise StaleWeights if a tensor is gone or lies elsewhere: graphs would read the old one.

        Values may change as they like; what PEFT wraps or injects moves nothing.
        """
        now = base_tensors(self._module)
        for name, place in self._places.items():
            if name not in now or place_of(now[name]) != place:
                how = "is gone" if name not in now else "no longer lies where it was"
                raise StaleWeights(
                    f"{name} {how} since the engine was built",
                    hint="build the engine anew after moving, casting or replacing weights",
                )
