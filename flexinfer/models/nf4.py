"""From bitsandbytes' 4-bit weights to leaves: the same bytes, double quantisation undone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.kernels.nf4 import BLOCK, CODE, Nf4, unnested


def is_4bit(weight: Tensor | None) -> bool:
    """Tell a weight of bitsandbytes' Linear4bit from others, without importing the library."""
    return type(weight).__name__ == "Params4bit"


def nf4_leaf(source: nn.Module | nn.Parameter, name: str = "weight") -> Nf4:
    """Return a bitsandbytes Linear4bit (or its bare weight) as a leaf over the same bytes.

    A module brings its bias and its compute dtype; a weight is multiplied in the dtype it was
    quantised from. Absmax is a new fp32 tensor where it is doubly quantised, else shared. Raises
    UsageError, naming `name`, for what is no NF4 that a leaf can hold.
    """
    weight: Any = source.weight if isinstance(source, nn.Module) else source
    state = _state_of(weight, name)
    rows, inputs = state.shape
    absmax = _absmax(state).view(rows, inputs // state.blocksize)
    if state.blocksize > BLOCK:
        absmax = absmax.repeat_interleave(state.blocksize // BLOCK, 1)
    packed = weight.detach().as_subclass(Tensor).view(torch.uint8).view(rows, inputs // 2)
    leaf = Nf4(packed, absmax, state.code, state.dtype)
    if not isinstance(source, nn.Module):
        return leaf
    module: Any = source
    bias = None if module.bias is None else module.bias.detach()
    return leaf._replace(bias=bias, dtype=module.compute_dtype or state.dtype)


def _absmax(state: Any) -> Tensor:
    """Return fp32 absmax, flat."""
    if not state.nested:
        return state.absmax.float()  # type: ignore[no-any-return]  # of an untyped library
    inner = state.state2
    return unnested(state.absmax, inner.absmax, inner.code, state.offset, inner.blocksize)


def _state_of(weight: Any, name: str) -> Any:
    """Return a weight's state; UsageError where it is no NF4 in a checkpoint's order of rows."""
    state = weight.quant_state if is_4bit(weight) else None
    if state is None:
        raise UsageError(f"{name} is {weight.dtype} without a quantisation state of bitsandbytes")
    if state.quant_type != "nf4" or not torch.equal(state.code.cpu(), torch.tensor(CODE)):
        raise UsageError(f"{name} is quantised to {state.quant_type}, not to NF4")
    if vars(state).get("packing_format_for_cpu"):
        raise UsageError(
            f"{name} has been repacked by bitsandbytes for this CPU, its scales rounded",
            hint="load the model again and hand it over before its first forward",
        )
    if state.blocksize % BLOCK or state.shape[1] % state.blocksize:
        inputs, block = state.shape[1], state.blocksize
        raise UsageError(f"{name} has blocks of {block} over rows of {inputs}: rows must hold them")
    return state
