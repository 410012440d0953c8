"""Builds a Gemma-4 text walker from a config mapping and the tensors of a checkpoint.

The unified models (12B) are Gemma-4 without per-layer inputs and experts, under other type names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flexinfer.attention.spec import LayerSpec
from flexinfer.errors import UsageError
from flexinfer.models import gemma4
from flexinfer.models.decoder import Layer, Pieces, Walker
from flexinfer.models.facts import activation_of, frequencies_of, head_of, layer_types_of, window_of
from flexinfer.models.gemma4 import (
    Gemma4Ends,
    Gemma4EndsShape,
    Gemma4Layer,
    Gemma4Shape,
    PerLayer,
    PerLayerEnds,
)
from flexinfer.models.layers import group
from flexinfer.models.rope import rope_kind
from flexinfer.models.source import Source


def build(config: Mapping[str, Any], source: Source) -> Walker:
    """Build the walker of a Gemma-4 text model; raise UsageError for kinds not supported."""
    _refuse(config)
    types = layer_types_of(config)
    kinds = tuple(sorted(set(types)))
    readers = kv_layers(types, config["num_kv_shared_layers"])
    layers = tuple(
        _layer(config, source, index, readers[index], kinds.index(kind))
        for index, kind in enumerate(types)
    )
    dims = {kind: layers[types.index(kind)].spec.head_dim for kind in kinds}
    ends, shape = _ends(config, source, dims)
    return Walker(
        Pieces(gemma4.embed, gemma4.block, gemma4.head),
        layers,
        ends,
        shape,
        ends.head.rows,
        narrow_at=len(types) - config["num_kv_shared_layers"],
    )


def kv_layers(types: tuple[str, ...], shared: int) -> tuple[int, ...]:
    """Return whose cache each layer reads: the last `shared` read their type's last owner."""
    owners = len(types) - shared
    own = types[:owners]
    if missing := sorted(set(types[owners:]) - set(own)):
        raise UsageError(f"num_kv_shared_layers {shared} leaves no {missing[0]} layer to read from")
    last = {kind: owners - 1 - own[::-1].index(kind) for kind in set(own)}
    return (*range(owners), *(last[kind] for kind in types[owners:]))


def _refuse(config: Mapping[str, Any]) -> None:
    """Raise UsageError for a Gemma-4 that the walker does not compute."""
    if config.get("enable_moe_block"):
        raise UsageError(
            "mixture-of-experts Gemma-4 (such as 26B-A4B) is not supported",
            hint="use a dense one: E2B, E4B, 12B or 31B",
        )
    if config.get("use_bidirectional_attention") == "all":
        raise UsageError("Gemma-4 with use_bidirectional_attention 'all' is not supported")


def _layer(
    config: Mapping[str, Any], source: Source, index: int, kv_layer: int, rope: int
) -> Layer:
    """Build layer `index`; head dim and kv heads are taken from the parameters' shapes."""
    weights = _weights(config, source, index, kv_layer)
    head_dim = weights.q_norm.shape[0]
    k_rows = source.linear(f"layers.{kv_layer}.self_attn.k_proj").rows
    spec = LayerSpec(
        index=index,
        heads=weights.projections.widths[0] // head_dim,
        kv_heads=k_rows // head_dim,
        head_dim=head_dim,
        scale=1.0,
        window=window_of(config, layer_types_of(config)[index]),
        kv_layer=kv_layer,
    )
    activation = activation_of(config["hidden_activation"])
    return Layer(spec, weights, Gemma4Shape(head_dim, config["rms_norm_eps"], activation), rope)


def _weights(config: Mapping[str, Any], source: Source, index: int, kv_layer: int) -> Gemma4Layer:
    """Collect the weights of layer `index`; one that shares KV has no k and v, even if defined."""
    at = f"layers.{index}."
    owns = kv_layer == index
    has_v = source.has(at + "self_attn.v_proj.weight")
    names = ("qkv" if has_v else "qk") if owns else "q"
    last = index + 1 == config["num_hidden_layers"]
    after = "norm.weight" if last else f"layers.{index + 1}.input_layernorm.weight"
    return Gemma4Layer(
        projections=group(*(source.linear(f"{at}self_attn.{name}_proj") for name in names)),
        q_norm=source.tensor(at + "self_attn.q_norm.weight"),
        k_norm=source.tensor(at + "self_attn.k_norm.weight") if owns else None,
        output=source.linear(at + "self_attn.o_proj"),
        attention_norm=source.tensor(at + "post_attention_layernorm.weight"),
        mlp_norm=source.tensor(at + "pre_feedforward_layernorm.weight"),
        gate_up=group(*(source.linear(f"{at}mlp.{name}_proj") for name in ("gate", "up"))),
        down=source.linear(at + "mlp.down_proj"),
        output_norm=source.tensor(at + "post_feedforward_layernorm.weight"),
        per_layer=_per_layer(config, source, at),
        scalar=source.tensor(at + "layer_scalar"),
        next_norm=source.tensor(after),
    )


def _per_layer(config: Mapping[str, Any], source: Source, at: str) -> PerLayer | None:
    """Collect a block's per-layer-input weights where the model has such inputs."""
    if not config.get("hidden_size_per_layer_input"):
        return None
    return PerLayer(
        gate=source.linear(at + "per_layer_input_gate"),
        projection=source.linear(at + "per_layer_projection"),
        norm=source.tensor(at + "post_per_layer_input_norm.weight"),
    )


def _ends(
    config: Mapping[str, Any], source: Source, dims: Mapping[str, int]
) -> tuple[Gemma4Ends, Gemma4EndsShape]:
    """Collect embed and head; `dims` are the head dims of the rope kinds, in the kinds' order."""
    embedding = source.tensor("embed_tokens.weight")
    limit = config["max_position_embeddings"]
    ropes = [rope_kind(config["rope_parameters"][kind], d, limit) for kind, d in dims.items()]
    per_layer = None
    if config.get("hidden_size_per_layer_input"):
        per_layer = PerLayerEnds(
            table=source.tensor("embed_tokens_per_layer.weight"),
            projection=source.linear("per_layer_model_projection"),
            norm=source.tensor("per_layer_projection_norm.weight"),
        )
    ends = Gemma4Ends(
        embedding=embedding,
        first_norm=source.tensor("layers.0.input_layernorm.weight"),
        inv_freqs=tuple(frequencies_of(rope, source, embedding.device) for rope in ropes),
        per_layer=per_layer,
        head=head_of(config, source),
    )
    return ends, _ends_shape(config, tuple(r.factor for r in ropes), embedding.dtype)


def _ends_shape(
    config: Mapping[str, Any], factors: tuple[float, ...], dtype: torch.dtype
) -> Gemma4EndsShape:
    """Read the static facts; table scales are rounded to `dtype` as the embeddings' buffers are."""

    def rounded(value: float) -> float:
        return float(torch.tensor(value).to(dtype))

    return Gemma4EndsShape(
        eps=config["rms_norm_eps"],
        rope_factors=factors,
        embed_scale=rounded(config["hidden_size"] ** 0.5),
        table_scale=rounded((config.get("hidden_size_per_layer_input") or 0) ** 0.5),
        projection_scale=config["hidden_size"] ** -0.5,
        softcap=config.get("final_logit_softcapping"),
    )
