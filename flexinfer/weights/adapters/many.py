"""Operations on hundreds of small tensors at once: an adapter's, at every refresh.

One call each for what would be a launch a tensor; where tensors differ in dtype or are not dense,
torch itself goes through them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy every source into its target."""
    if targets:
        torch._foreach_copy_(targets, sources)


def copies_on(device: torch.device, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of tensors on a device, in memory of their own; dtypes stay."""
    given = [tensor.detach() for tensor in tensors]
    made = [torch.empty_like(tensor, device=device) for tensor in given]
    copy_all(made, given)
    return made
