"""Puts an adapter into a Hugging Face module as PEFT's own layers, beside the base."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flexinfer.errors import UsageError
from flexinfer.models.catalog import build_decoder
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.adapters.folder import read_folder
from flexinfer.weights.adapters.names import relative_name
from flexinfer.weights.adapters.random_adapter import random_adapter
from flexinfer.weights.adapters.targets import Listening
from flexinfer.weights.names import random_rank

NAME = "default"


def put_adapter(module: Any, choice: AdapterChoice) -> Adapter:
    """Read the adapter of `choice` and put it into a loaded module; return it.

    Raises UsageError for one that cannot be read, that trains biases, or that is to be merged.
    """
    if choice.mode == "merged":
        raise UsageError(
            "--lora-mode merged is of flex alone: the module runs an adapter beside its base",
            hint="leave --lora-mode out, or measure with --lora-mode runtime",
        )
    adapter = _read(module, choice)
    if biased := next((name for name, pair in adapter.pairs.items() if pair.bias is not None), ""):
        raise UsageError(f"adapter {adapter.name}: its bias of {biased} is served by flex alone")
    full = {relative_name(n): n for n, x in module.named_modules() if isinstance(x, nn.Linear)}
    _inject(module, {full[name]: pair for name, pair in adapter.pairs.items()})
    return adapter


def _read(module: Any, choice: AdapterChoice) -> Adapter:
    """Return the adapter in memory, from a folder or drawn, as the engine would."""
    heard: list[Listening] = []

    def listen(held: nn.Module, root: str) -> Listening:
        heard.append(Listening(held, root))
        return heard[-1]

    build_decoder(module, listen)
    source = choice.source
    if isinstance(source, Adapter):
        return source
    assert isinstance(source, str | Path), "a loaded model names its adapter"
    if (rank := random_rank(str(source))) is not None:
        like = heard[0].tensor("embed_tokens.weight")
        return random_adapter(heard[0].heard, rank, choice.seed, like.dtype, like.device)
    return read_folder(Path(source).expanduser(), heard[0].heard)


def _inject(module: nn.Module, pairs: dict[str, Pair]) -> None:
    """Wrap the linear maps of those full names in PEFT's layers, filled and frozen."""
    with _silence():
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora.layer import LoraLayer
    config = LoraConfig(
        r=1,
        target_modules=list(pairs),
        rank_pattern={f"^{name}$": pair.a.shape[0] for name, pair in pairs.items()},
        alpha_pattern={f"^{name}$": pair.a.shape[0] * pair.scale for name, pair in pairs.items()},
    )
    # on the meta device: no random number is drawn for weights that are replaced
    inject_adapter_in_model(config, module, NAME, low_cpu_mem_usage=True)
    layers = {n: x for n, x in module.named_modules() if isinstance(x, LoraLayer)}
    assert layers.keys() == pairs.keys(), layers.keys() ^ pairs.keys()
    for name, layer in layers.items():
        _fill(layer, pairs[name])
    module.requires_grad_(False).eval()


def _fill(layer: Any, pair: Pair) -> None:
    """Give PEFT's layer the adapter's tensors, in their own dtype, on the base's device."""
    device: torch.device = layer.get_base_layer().weight.device
    for side, tensor in ((layer.lora_A, pair.a), (layer.lora_B, pair.b)):
        side[NAME].weight = nn.Parameter(tensor.to(device), requires_grad=False)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep to themselves what imports log."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
