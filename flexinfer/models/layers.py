"""Packing: which linear maps of one input lie in one buffer, so that one product serves them."""

from __future__ import annotations

import torch
from torch import Tensor

from flexinfer.kernels.linear import Dense, Group, Leaf, Packed, Separate


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


def group(*members: Leaf) -> Group:
    """Return the members as one GEMM where their weights (and biases) are packed, else apart."""
    dense = [leaf for leaf in members if isinstance(leaf, Dense)]
    if len(dense) < len(members) or len(members) < 2:
        return Separate(members)
    biases = [leaf.bias for leaf in dense if leaf.bias is not None]
    weight = packed_view(*(leaf.weight for leaf in dense))
    bias = packed_view(*biases) if len(biases) == len(dense) else None
    if weight is None or (biases and bias is None):
        return Separate(members)
    return Packed(Dense(weight, bias), tuple(leaf.rows for leaf in dense))
