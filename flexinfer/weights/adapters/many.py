"""Operations on hundreds of small tensors at once: an adapter's, at every refresh.

One call each for what would be a Python call and a launch a tensor. Where any of them differ in
strides, torch itself goes through them one by one, so those have a call of their own. No public
function gives these (they are what torch.optim is made of).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy every source into its target."""
    alike: dict[bool, tuple[list[Tensor], list[Tensor]]] = {True: ([], []), False: ([], [])}
    for target, source in zip(targets, sources, strict=True):
        held = alike[target.stride() == source.stride()]
        held[0].append(target)
        held[1].append(source)
    for targets, sources in alike.values():
        if targets:
            torch._foreach_copy_(targets, sources)


def scaled_all(factors: Sequence[tuple[Tensor, float]]) -> list[Tensor]:
    """Return each tensor times its number."""
    if not factors:
        return []
    return list(torch._foreach_mul([t for t, _ in factors], [scale for _, scale in factors]))


def copies_on(device: torch.device, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of tensors on a device, in memory of their own; dtypes stay."""
    given = [tensor.detach() for tensor in tensors]
    made = [torch.empty_like(tensor, device=device) for tensor in given]
    copy_all(made, given)
    return made
