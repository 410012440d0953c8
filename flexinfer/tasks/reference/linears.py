"""The linear maps of a Hugging Face module, by the names adapters use, and how to swap them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from flexinfer.weights.adapters.names import relative_name


def linears(module: nn.Module) -> Mapping[str, tuple[str, nn.Linear]]:
    """Return (full name, layer) of every linear map by its name relative to the text model."""
    return {
        relative_name(name): (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    }


def is_packed(layer: nn.Linear) -> bool:
    """Whether a layer's weight is packed by bitsandbytes."""
    return not layer.weight.is_floating_point()


def dense_weight(layer: nn.Linear) -> Tensor:
    """Return the weight [out, in] that a layer multiplies with: its own, or dequant(W4)."""
    weight: Any = layer.weight.data
    if is_packed(layer):
        from bitsandbytes.functional import dequantize_4bit

        packed: Any = layer.weight
        weight = dequantize_4bit(packed.data, packed.quant_state)
    found: Tensor = weight.detach()
    return found


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a frozen linear map over a weight [out, in], which is not copied."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, False)
    return layer.eval()


def put(module: nn.Module, name: str, child: nn.Module) -> None:
    """Make `child` the submodule of that full name."""
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, child)


@contextmanager
def as_before(module: Any) -> Iterator[None]:
    """On leaving, put back children, modes, gradient flags, attributes and the attention."""
    children = {name: child for name, child in module.named_modules() if name}
    modes = [(child, child.training) for child in module.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    attributes, attention = set(vars(module)), module.config._attn_implementation
    try:
        yield
    finally:
        for name, child in children.items():
            put(module, name, child)
        for child, training in modes:
            child.training = training
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for name in set(vars(module)) - attributes:
            delattr(module, name)
        if module.config._attn_implementation != attention:
            module.set_attn_implementation(attention)
