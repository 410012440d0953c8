"""What a walker copied because of how the projections of one input lie in a borrowed module."""

from __future__ import annotations

from torch import nn

from flexinfer.kernels.linear import Packed
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import Nf4
from flexinfer.models.decoder import Decoder, Walker
from flexinfer.models.source import base_tensors


def copied_bytes(decoder: Decoder, module: nn.Module) -> int:
    """Return the bytes of 4-bit weights that a walker holds beside those of its module."""
    assert isinstance(decoder, Walker), "families are walkers"
    own = {tensor.untyped_storage().data_ptr() for tensor in base_tensors(module).values()}
    parts = [part for layer in decoder.layers for part in layer.weights]
    held = [part.whole for part in parts if isinstance(part, Packed)]
    bases = [leaf.base if isinstance(leaf, Adapted) else leaf for leaf in held]
    packed = [leaf.packed for leaf in bases if isinstance(leaf, Nf4)]
    return sum(t.nbytes for t in packed if t.untyped_storage().data_ptr() not in own)
