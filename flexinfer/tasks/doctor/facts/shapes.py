"""How large a model is, from its config alone: parameters and cache, counted without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexinfer.tasks.doctor.facts.layer_shapes import GEMMA, LayerShape, layer_shapes


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Numbers of elements, not bytes.

    `targets` are the weights an adapter may change (q, k, v, o, gate, up, down), `linear` all
    linear weights but the head, `other` the rest (embeddings, head, norms); `adapter_row` is what
    each unit of LoRA rank adds; `kv_per_token` counts keys and values of the layers that own a
    cache; `mlp` is the widest; `longest` is the longest sequence in tokens.
    """

    targets: int
    linear: int
    other: int
    adapter_row: int
    kv_per_token: int
    head_dims: tuple[int, ...]
    layers: int
    hidden: int
    mlp: int
    vocab: int
    longest: int

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return self.linear + self.other


def shapes(config: Mapping[str, Any]) -> Shapes:
    """Count a text config of Qwen3, Llama or Gemma-4; raises KeyError for a missing field."""
    layers, hidden = layer_shapes(config), config["hidden_size"]
    matrices = [matrix for layer in layers for matrix in layer.matrices]
    targets = sum(rows * columns for rows, columns in matrices)
    # Gemma-4 gives every layer an input of its own: a gate, a projection, a share of the model's.
    gemma = config["model_type"] == GEMMA
    per_layer = config.get("hidden_size_per_layer_input", 256) if gemma else 0
    return Shapes(
        targets=targets,
        linear=targets + 3 * hidden * per_layer * len(layers),
        other=_tables(config, per_layer)
        + _norms(config, layers, per_layer)
        + _biases(config, layers),
        adapter_row=sum(rows + columns for rows, columns in matrices),
        kv_per_token=sum(2 * layer.kv for layer in layers),
        head_dims=tuple(sorted({layer.head_dim for layer in layers})),
        layers=len(layers),
        hidden=hidden,
        mlp=max(layer.mlp for layer in layers),
        vocab=config["vocab_size"],
        longest=config.get("max_position_embeddings", 2048),
    )


def _tables(config: Mapping[str, Any], per_layer: int) -> int:
    """Count the embeddings, the head where it is not tied, and Gemma-4's per-layer inputs."""
    tied = config.get("tie_word_embeddings", config["model_type"] == GEMMA)
    words = config["vocab_size"] * config["hidden_size"] * (1 if tied else 2)
    inputs = config.get("vocab_size_per_layer_input", 262144) * config["num_hidden_layers"]
    return int(words + inputs * per_layer)


def _norms(config: Mapping[str, Any], layers: Sequence[LayerShape], per_layer: int) -> int:
    """Count norm weights: the final one, those around the blocks, those of queries and keys."""
    hidden, family = config["hidden_size"], config["model_type"]
    around = (4 if family == GEMMA else 2) + (1 if per_layer else 0)
    total = hidden + around * hidden * len(layers) + per_layer
    heads = 0 if family == "llama" else sum(x.head_dim * (2 if x.kv else 1) for x in layers)
    return int(total + heads)


def _biases(config: Mapping[str, Any], layers: Sequence[LayerShape]) -> int:
    """Count biases: one per row of each matrix, where the config asks for them."""
    total = 0
    for layer in layers:
        rows = [rows for rows, _ in layer.matrices]
        total += sum(rows[:-3]) if config.get("attention_bias") else 0
        total += sum(rows[-3:]) if config.get("mlp_bias") else 0
    return total
