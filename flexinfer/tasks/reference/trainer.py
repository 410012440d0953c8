"""The trainer: the Hugging Face module with PEFT's LoRA over it, and what a merge makes of it.

Each is the borrowed module, some of its linear maps replaced for a while; on leaving, every child,
flag and attribute is as it was. Attention is eager. A 4-bit base computes as dequant(W4).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.tasks.reference.linears import (
    as_before,
    dense_weight,
    is_packed,
    linear_of,
    linears,
    put,
)
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.choice import AdapterSource
from flexinfer.weights.adapters.names import relative_name
from flexinfer.weights.names import random_rank

NAME = "verify_drift"
"""Of the adapter within PEFT."""


@contextmanager
def peft_over(module: Any, adapter: Adapter, source: AdapterSource) -> Iterator[None]:
    """Compute base(x) + scale B (A x) by PEFT's own layers, with the tensors as they were given.

    PEFT itself reads ranks and scales from the config of a folder (`source`). Raises UsageError
    where PEFT sees other ranks than the adapter has.
    """
    inject, lora_layer = _peft()
    with _eager(module):
        _dequantise(module)
        held = linears(module)
        pairs = {held[name][0]: pair for name, pair in adapter.pairs.items() if _has_delta(pair)}
        for name, pair in adapter.pairs.items():
            if pair.bias is not None:
                full_name, layer = held[name]
                put(module, full_name, linear_of(layer.weight.data, _like(pair.bias, layer)))
        if pairs:
            # on the meta device: no random number is drawn for weights that are replaced
            inject(_config(source, pairs), module, NAME, low_cpu_mem_usage=True)
        layers = {n: x for n, x in module.named_modules() if isinstance(x, lora_layer)}
        assert layers.keys() == pairs.keys(), layers.keys() ^ pairs.keys()
        for name, layer in layers.items():
            _fill(name, layer, pairs[name])
        module.eval()
        yield


def scaled_by_peft(module: nn.Module, adapter: Adapter) -> Adapter:
    """Return the adapter with the scales that PEFT's layers use; to be called within peft_over."""
    layers = {relative_name(n): x for n, x in module.named_modules() if isinstance(x, _peft()[1])}
    pairs = {
        name: pair._replace(scale=layers[name].scaling[NAME]) if name in layers else pair
        for name, pair in adapter.pairs.items()
    }
    return replace(adapter, pairs=pairs)


@contextmanager
def merged_over(module: nn.Module, adapter: Adapter) -> Iterator[None]:
    """Compute with W + scale B A, summed in fp32 and rounded once to the dtype of W.

    It takes the memory of a second copy of the adapter's targets.
    """
    with _eager(module), torch.no_grad():
        _dequantise(module)
        held = linears(module)
        for name, pair in adapter.pairs.items():
            full_name, base = held[name]
            bias = base.bias if pair.bias is None else _like(pair.bias, base)
            put(module, full_name, linear_of(_merged(base.weight.data, pair), bias))
        yield


@contextmanager
def dense_over(module: nn.Module) -> Iterator[None]:
    """Compute with dequant(W4) where a base is packed; the module's own attention stays."""
    with as_before(module):
        _dequantise(module)
        yield


def _merged(weight: Tensor, pair: Pair) -> Tensor:
    """Return the merged weight."""
    a, b = (side.to(weight.device).float() for side in (pair.a, pair.b))
    return (weight.float() + pair.scale * (b @ a)).to(weight.dtype)


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    """Compute with eager attention, and leave the module as it was."""
    with as_before(module):
        module.set_attn_implementation("eager")
        yield


def _dequantise(module: nn.Module) -> None:
    """Put dense linear maps in the place of packed ones."""
    for full_name, layer in linears(module).values():
        if is_packed(layer):
            put(module, full_name, linear_of(dense_weight(layer), layer.bias))


def _like(bias: Tensor, layer: nn.Linear) -> Tensor:
    """Return a trained bias in the dtype and on the device of its layer."""
    return bias.to(layer.weight.device, layer.weight.dtype)


def _has_delta(pair: Pair) -> bool:
    """Whether a pair is more than a trained bias."""
    return pair.bias is None or bool(pair.b.any())


def _peft() -> tuple[Any, Any]:
    """Import PEFT's injection and the class of its layers; what imports log is nobody's concern."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        from peft import inject_adapter_in_model
        from peft.tuners.lora.layer import LoraLayer
    finally:
        logging.disable(before)
    return inject_adapter_in_model, LoraLayer


def _config(source: AdapterSource, pairs: Mapping[str, Pair]) -> Any:
    """Return PEFT's config, its targets named one by one: the folder's own, or one for the pairs.

    Patterns of an adapter that was trained in a multimodal shell lose the shell's part.
    """
    from peft import LoraConfig, PeftConfig

    if isinstance(source, str | Path) and random_rank(str(source)) is None:
        config: Any = PeftConfig.from_pretrained(str(Path(source).expanduser()))
        for table in ("rank_pattern", "alpha_pattern"):
            old: Mapping[str, Any] = vars(config)[table] or {}
            setattr(config, table, {k.replace("language_model.", ""): v for k, v in old.items()})
        config.bias, config.exclude_modules, config.layers_to_transform = "none", None, None
        config.layers_pattern, config.lora_dropout = None, 0.0
        config.init_lora_weights = True
        config.target_modules = set(pairs)
        return config
    return LoraConfig(
        r=1,
        target_modules=list(pairs),
        rank_pattern={f"^{name}$": pair.a.shape[0] for name, pair in pairs.items()},
        alpha_pattern={f"^{name}$": pair.a.shape[0] * pair.scale for name, pair in pairs.items()},
    )


def _fill(name: str, layer: Any, pair: Pair) -> None:
    """Give PEFT's layer the adapter's tensors, in their own dtype, on the base's device."""
    rank, device = layer.r[NAME], layer.get_base_layer().weight.device
    if rank != pair.a.shape[0]:
        raise UsageError(
            f"PEFT reads rank {rank} for {name}, and its A has {pair.a.shape[0]}",
            hint="see rank_pattern in adapter_config.json",
        )
    layer.lora_A[NAME].weight = nn.Parameter(pair.a.to(device), requires_grad=False)
    layer.lora_B[NAME].weight = nn.Parameter(pair.b.to(device), requires_grad=False)
