"""A model without weights: built on the meta device, then given memory and its computed buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flexinfer.errors import UsageError, one_line
from flexinfer.kernels.nf4 import BLOCK
from flexinfer.models.nf4 import is_4bit
from flexinfer.weights.families import causal_lm
from flexinfer.weights.pack import allocate

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_EMBED_WIDTH = {
    "embed_tokens": "hidden_size",
    "embed_tokens_per_layer": "hidden_size_per_layer_input",
}


def shell(config: PreTrainedConfig, generation: Mapping[str, Any], origin: str) -> PreTrainedModel:
    """Return the *ForCausalLM of `config` on the meta device, in eval mode: shapes, no memory.

    `generation` is its generation_config.json (or empty), `origin` the path or name it remembers;
    raises UsageError where one of the configs makes no sense.
    """
    from transformers import GenerationConfig

    config.name_or_path = origin
    model_class = causal_lm(config)
    try:
        with torch.device("meta"):
            model = model_class(config)
    except Exception as error:
        raise UsageError(f"{origin}: the config describes no model: {one_line(error)}") from error
    try:
        if generation:
            model.generation_config = GenerationConfig.from_dict(dict(generation))
    except Exception as error:
        raise UsageError(f"{origin}: generation_config.json: {one_line(error)}") from error
    model.eval()
    return model


def weight_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes of all parameters in `dtype`, tied ones counted once.

    4-bit ones count as they do in a leaf: half a byte a weight, and fp32 a block.
    """
    sizes = (
        p.numel() // 2 + 4 * (p.numel() // BLOCK) if is_4bit(p) else p.numel() * dtype.itemsize
        for p in model.parameters()
    )
    return sum(sizes)


def materialise(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
    """Turn a shell into a model on `device`, its parameters packed but not yet filled.

    No random number is drawn and no weight exists twice. Computed buffers (rope frequencies,
    embedding scales) are right; parameters and persistent buffers are for the caller to fill.
    4-bit weights get memory when they are filled: see nf4/slots.py.
    """
    model.config.dtype = dtype
    allocate(model, dtype, device)
    for name, value in _computed(model).items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, value.to(device))
    named = [*model.named_parameters(), *model.named_buffers()]
    left = [name for name, tensor in named if tensor.is_meta and not is_4bit(tensor)]
    assert not left, f"no value for {left}"


def _computed(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the values of all buffers that no checkpoint holds, by name, on the CPU."""
    rotary = type(model.get_submodule("model.rotary_emb"))(model.config)
    values = {f"model.rotary_emb.{name}": value for name, value in rotary.named_buffers()}
    for name, _ in model.named_buffers():
        if name.endswith(".embed_scale"):
            width = model.config.to_dict()[_EMBED_WIDTH[name.split(".")[-2]]]
            values[name] = torch.tensor(width**0.5)
    return values
