"""Facts of a model read from its config mapping, and refusals by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flexinfer.errors import UsageError
from flexinfer.kernels.linear import Dense, Leaf
from flexinfer.kernels.mlp import ACTIVATIONS
from flexinfer.models.rope import RopeKind
from flexinfer.models.source import Source

SLIDING, FULL = "sliding_attention", "full_attention"


def activation_of(name: str) -> str:
    """Return `name` if the gated MLP knows it; else raise UsageError."""
    if name not in ACTIVATIONS:
        raise UsageError(
            f"activation {name!r} is not supported", hint="known: " + ", ".join(ACTIVATIONS)
        )
    return name


def layer_types_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each layer's attention type (all full where the config has none)."""
    types = tuple(config.get("layer_types") or [FULL] * config["num_hidden_layers"])
    if unknown := sorted(set(types) - {SLIDING, FULL}):
        raise UsageError(f"layer type {unknown[0]!r} is not supported")
    return types


def window_of(config: Mapping[str, Any], layer_type: str) -> int | None:
    """Return the window of a layer type, in tokens with the query's own; None is full."""
    return int(config["sliding_window"]) if layer_type == SLIDING else None


def head_of(config: Mapping[str, Any], source: Source) -> Leaf:
    """Return the output head; a tied one may be missing under its own name."""
    if config.get("tie_word_embeddings") and not source.has("lm_head.weight"):
        return Dense(source.tensor("embed_tokens.weight"))
    return source.linear("lm_head")


def frequencies_of(kind: RopeKind, source: Source, device: torch.device) -> Tensor:
    """Return fp32 frequencies on `device`, rounded as the module's own were when it was cast."""
    return kind.inv_freq.to(source.rope_dtype).float().to(device)
