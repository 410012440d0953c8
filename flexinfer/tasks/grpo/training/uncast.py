"""Spares training the round trip of activations through fp32 that PEFT makes under autocast.

PEFT casts the input of each LoRA layer to the dtype of its masters, fp32, and autocast casts it
back for the product: two passes over every activation there and two in the backward pass, and a
copy kept for it, for the same bits. PEFT's 4-bit layers leave it out under autocast themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from peft.tuners.lora.layer import Linear
from torch import nn


def plain_layers(model: nn.Module) -> tuple[Linear, ...]:
    """Return the LoRA layers whose input goes into a product and nowhere else.

    Dropout would round between the casts, and PEFT's variants compute on the input themselves.
    """
    layers = (layer for layer in model.modules() if type(layer) is Linear)
    return tuple(layer for layer in layers if not layer.lora_variant and not _drops(layer))


def _drops(layer: Linear) -> bool:
    """Whether a layer has dropout."""
    return not all(isinstance(child, nn.Identity) for child in layer.lora_dropout.values())


@contextmanager
def casting(layers: Sequence[Linear], wanted: bool) -> Iterator[None]:
    """Have PEFT cast the layers' inputs or not, and put its own switch back on leaving.

    A forward pass without autocast needs the casts, one of the same module under it does not.
    """
    before = [layer.cast_input_dtype_enabled for layer in layers]
    for layer in layers:
        layer.cast_input_dtype_enabled = wanted
    try:
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.cast_input_dtype_enabled = was
