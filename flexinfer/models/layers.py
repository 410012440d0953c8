"""Packing: which linear maps of one input lie in one buffer, so that one product serves them."""

from __future__ import annotations

import torch
from torch import Tensor

from flexinfer.kernels.linear import Dense, Group, Leaf, Packed, Separate
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import Nf4, stacked


def packed_view(*weights: Tensor) -> Tensor | None:
    """Return one view over all rows if `weights` are adjacent row views of one storage, else None.

    Adjacent: same storage, dtype, row size and strides, each starting where the one before ends.
    Nothing is copied.
    """
    first = weights[0]
    end = first.storage_offset()
    for weight in weights:
        if (
            weight.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or weight.dtype != first.dtype
            or weight.shape[1:] != first.shape[1:]
            or weight.stride() != first.stride()
            or weight.storage_offset() != end
        ):
            return None
        end += weight.shape[0] * weight.stride(0)
    size = (sum(w.shape[0] for w in weights), *first.shape[1:])
    return torch.as_strided(first, size, first.stride(), first.storage_offset())


def joined(*leaves: Leaf) -> Leaf | None:
    """Return one leaf over the rows of all, in order, where their tensors are packed, else None.

    4-bit weights are frozen, so theirs are copied where they are not; biases never are.
    """
    dense = [leaf for leaf in leaves if isinstance(leaf, Dense)]
    adapted = [leaf for leaf in leaves if isinstance(leaf, Adapted)]
    if len(adapted) == len(leaves):
        a = adapted[0].a
        base, b = joined(*(leaf.base for leaf in adapted)), packed_view(*(x.b for x in adapted))
        if base is None or b is None or any(leaf.a is not a for leaf in adapted):
            return None
        ranks = adapted[0].ranks
        return Adapted(base, a, b, ranks if len(ranks) == len(leaves) else ())
    packed = [leaf for leaf in leaves if isinstance(leaf, Nf4)]
    if len(leaves) not in (len(dense), len(packed)):
        return None
    matrices: list[Dense | Nf4] = [*dense, *packed]
    biases = [leaf.bias for leaf in matrices if leaf.bias is not None]
    bias = packed_view(*biases) if len(biases) == len(leaves) else None
    if biases and bias is None:
        return None
    if packed:
        whole = packed_view(*(leaf.packed for leaf in packed))
        return stacked(packed, whole, packed_view(*(leaf.absmax for leaf in packed)), bias)
    weight = packed_view(*(leaf.weight for leaf in dense))
    return None if weight is None else Dense(weight, bias)


def group(*members: Leaf) -> Group:
    """Return the members as one GEMM where their weights (and biases) are packed, else apart."""
    whole = joined(*members) if len(members) > 1 else None
    if whole is None:
        return Separate(members)
    return Packed(whole, tuple(leaf.rows for leaf in members))
