"""Operations on hundreds of small tensors at once: an adapter's, at every refresh.

One call each for what would be a Python call and a launch a tensor. Where any of them differ in
strides, torch itself goes through them one by one, so those have a call of their own. No public
function gives these (they are what torch.optim is made of).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy every source into its target."""
    pairs = list(zip(targets, sources, strict=True))
    alike = [target.stride() == source.stride() for target, source in pairs]
    for laid_out in (True, False):
        some = [pair for pair, same in zip(pairs, alike, strict=True) if same is laid_out]
        if some:
            torch._foreach_copy_([target for target, _ in some], [source for _, source in some])


def scaled_all(factors: Sequence[tuple[Tensor, float]]) -> list[Tensor]:
    """Return each tensor times its number."""
    if not factors:
        return []
    return list(torch._foreach_mul([t for t, _ in factors], [scale for _, scale in factors]))


def copies_on(device: torch.device, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return contiguous copies of tensors on a device; dtypes stay.

    Those of a dtype lie in one block of memory, so a copy of the same tensors takes just as much,
    which many blocks of an allocator's do not: it leaves what is too little to split.
    """
    given = [tensor.detach() for tensor in tensors]
    made: list[Tensor] = list(given)
    for dtype in dict.fromkeys(tensor.dtype for tensor in given):
        places = [place for place, tensor in enumerate(given) if tensor.dtype == dtype]
        some = [given[place] for place in places]
        block = torch.empty(sum(one.numel() for one in some), dtype=dtype, device=device)
        parts = _unflatten_dense_tensors(block, some)  # type: ignore[no-untyped-call]  # torch's
        for place, part in zip(places, parts, strict=True):
            made[place] = part
    copy_all(made, given)
    return made
