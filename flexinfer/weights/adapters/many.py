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
    """Return contiguous copies of tensors on a device, in memory of their own; dtypes stay.

    Those of a dtype are views of one block, which any of them keeps. So copies of the same tensors
    always take as much memory: of many blocks, an allocator leaves what is too little to split.
    """
    given = [tensor.detach() for tensor in tensors]
    parts = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in given):
        some = [tensor for tensor in given if tensor.dtype == dtype]
        block = torch.empty(sum(one.numel() for one in some), dtype=dtype, device=device)
        views = _unflatten_dense_tensors(block, some)  # type: ignore[no-untyped-call]  # no hints
        parts[dtype] = iter(views)
    made: list[Tensor] = [next(parts[tensor.dtype]) for tensor in given]
    copy_all(made, given)
    return made
