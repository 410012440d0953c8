"""The widths of one decoder layer, from a text config alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA = "gemma4_text"


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Widths of one layer: `q` and `kv` count heads times head dim; `kv` is 0 where it owns none.

    `values` says that values have a projection of their own.
    """

    hidden: int
    q: int
    kv: int
    values: bool
    head_dim: int
    mlp: int

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """(rows, columns) of q, k, v, o, gate, up and down, those that exist."""
        own = [(self.kv, self.hidden)] * ((2 if self.values else 1) if self.kv else 0)
        attention = [(self.q, self.hidden), *own, (self.hidden, self.q)]
        return [*attention, *[(self.mlp, self.hidden)] * 2, (self.hidden, self.mlp)]


def layer_shapes(config: Mapping[str, Any]) -> list[LayerShape]:
    """Describe every layer of Qwen3, Llama or Gemma-4; raises KeyError for a missing field."""
    layer = _gemma if config["model_type"] == GEMMA else _plain
    return [layer(config, index) for index in range(config["num_hidden_layers"])]


def _plain(config: Mapping[str, Any], index: int) -> LayerShape:
    """Describe a layer of Qwen3 or Llama, which are all alike."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return LayerShape(
        hidden=config["hidden_size"],
        q=heads * head_dim,
        kv=(config.get("num_key_value_heads") or heads) * head_dim,
        values=True,
        head_dim=head_dim,
        mlp=config["intermediate_size"],
    )


def _gemma(config: Mapping[str, Any], index: int) -> LayerShape:
    """Describe a Gemma-4 layer: sliding or full, with its own keys and values or sharing them."""
    full = _is_full(config, index)
    k_eq_v = bool(config.get("attention_k_eq_v")) and full
    owns = index < config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
    head_dim, kv_heads = _gemma_heads(config, index, full, k_eq_v)
    wide = bool(config.get("use_double_wide_mlp")) and not owns
    return LayerShape(
        hidden=config["hidden_size"],
        q=config["num_attention_heads"] * head_dim,
        kv=kv_heads * head_dim if owns else 0,
        values=not k_eq_v,
        head_dim=head_dim,
        mlp=config["intermediate_size"] * (2 if wide else 1),
    )


def _gemma_heads(
    config: Mapping[str, Any], index: int, full: bool, k_eq_v: bool
) -> tuple[int, int]:
    """Return (head dim, kv heads); releases from 5.24 on write them layer by layer."""
    head_dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
    if (overrides := config.get("per_layer_config")) is not None:
        own = overrides.get(str(index)) or {}
        return own.get("head_dim", head_dim), own.get("num_key_value_heads", kv_heads)
    head_dim = config.get("global_head_dim", 512) if full else head_dim
    return head_dim, (config.get("num_global_key_value_heads") if k_eq_v else None) or kv_heads


def _is_full(config: Mapping[str, Any], index: int) -> bool:
    """Whether a Gemma-4 layer sees everything; by default every sixth, the last one always."""
    types, last = config.get("layer_types"), config["num_hidden_layers"] - 1
    listed = types[index] == FULL if types else (index + 1) % 6 == 0
    return bool(listed) or index == last
