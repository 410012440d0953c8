"""Where the tensors of a borrowed module lie, and whether they still do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flexinfer.errors import StaleWeights
from flexinfer.models.nf4 import is_4bit
from flexinfer.models.source import base_tensors, is_adapters

STATE = ("quant_state", "absmax", "offset", "state2", "state2.absmax")
"""The parts of what bitsandbytes keeps of a 4-bit weight."""


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
        tensors = _watched(module)
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
        if self._unchanged():
            return
        now = _watched(self._module)
        for name, place in self._places.items():
            if name not in now or place_of(now[name]) != place:
                how = "is gone" if name not in now else "no longer lies where it was"
                raise StaleWeights(
                    f"{name} {how} since the engine was built",
                    hint="build the engine anew after moving, casting or replacing weights",
                )
        self._remember(now)

    def _unchanged(self) -> bool:
        """Whether the tree holds what it held and nothing has moved: thousands of looks a call."""
        for holder, key, held in self._slots:
            if holder.get(key) is not held:
                return False
        return all(place_of(tensor) == place for tensor, place in self._tensors)


def _watched(module: nn.Module) -> dict[str, Tensor]:
    """Return a base's tensors, with the scales of 4-bit weights, which are no parameters."""
    tensors = base_tensors(module)
    for name, weight in list(tensors.items()):
        for part, slot in zip(STATE, _state_of(weight), strict=False):
            if isinstance(slot.held, Tensor):
                tensors[f"{name}'s {part}"] = slot.held
    return tensors


def _state_of(weight: Tensor | None) -> list[Slot]:
    """Return what leads to the scales that bitsandbytes keeps of a 4-bit weight, as STATE names it.

    The last three are there where scales are quantised, too.
    """
    state = vars(weight).get("quant_state") if is_4bit(weight) else None
    if state is None:
        return []
    slots = [Slot(vars(weight), "quant_state", state), Slot(vars(state), "absmax", state.absmax)]
    if state.nested:
        inner = state.state2
        slots += [Slot(vars(state), key, vars(state)[key]) for key in ("offset", "state2")]
        slots.append(Slot(vars(inner), "absmax", inner.absmax))
    return slots


def _slots(module: nn.Module) -> list[Slot]:
    """Return what of a tree leads to a base's tensors: children, tensors, dicts that hold them.

    What an adapter added is left out, and so are empty dicts, through which nothing is reached.
    """
    slots, waiting = [], [module]
    while waiting:
        owner = waiting.pop()
        for name in ("_modules", "_parameters", "_buffers"):
            holder = vars(owner)[name]
            kept = {key: held for key, held in holder.items() if not is_adapters(f".{key}.")}
            if kept:
                slots.append(Slot(vars(owner), name, holder))
                slots += [Slot(holder, key, held) for key, held in kept.items()]
            if name == "_parameters":
                slots += [slot for held in kept.values() for slot in _state_of(held)]
        waiting += [child for child in vars(owner)["_modules"].values() if child is not None]
    return slots
