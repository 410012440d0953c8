"""Where the tensors of a borrowed module lie, and whether they still do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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


class Slot(NamedTuple):
    """What a module holds, or what holds it: `holder[key] is held`."""

    holder: Mapping[str, Any]
    key: str
    held: Any


class Borrowed:
    """Remembers where every tensor of a module lay when an engine was built over it."""

    def __init__(self, module: nn.Module) -> None:
        """Take the places of parameters and buffers; nothing is copied."""
        self._module = module
        tensors = base_tensors(module)
        self._places = {name: place_of(tensor) for name, tensor in tensors.items()}
        self._remember(tensors)

    def _remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tree and the tensors as they are, which are known to be where they were."""
        self._slots = _slots(self._module)
        self._tensors = [(tensors[name], place) for name, place in self._places.items()]

    def check(self) -> None:
        """Raise StaleWeights if a tensor is gone or lies elsewhere: graphs would read the old one.

        Values may change as they like; what PEFT wraps or injects moves nothing. A module that is
        made as it was when it was last found right is not walked again, which takes milliseconds.
        """
        same = all(slot.holder.get(slot.key) is slot.held for slot in self._slots)
        if same and all(place_of(tensor) == place for tensor, place in self._tensors):
            return
        now = base_tensors(self._module)
        for name, place in self._places.items():
            if name not in now or place_of(now[name]) != place:
                how = "is gone" if name not in now else "no longer lies where it was"
                raise StaleWeights(
                    f"{name} {how} since the engine was built",
                    hint="build the engine anew after moving, casting or replacing weights",
                )
        self._remember(now)


def _slots(module: nn.Module) -> list[Slot]:
    """Return all children, parameters and buffers of a tree, and the dicts that hold them."""
    slots = []
    for owner in module.modules():
        for name in ("_modules", "_parameters", "_buffers"):
            holder = vars(owner)[name]
            slots.append(Slot(vars(owner), name, holder))
            slots += [Slot(holder, key, held) for key, held in holder.items()]
    return slots
