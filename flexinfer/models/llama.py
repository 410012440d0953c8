"""Llama 3.x and its relatives: pre-norm blocks, one rope, optional per-head q/k norms (Qwen3).

Shape letters: T tokens, E hidden size, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from flexinfer.attention.spec import LayerAttend, LayerSpec
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.ops import Ops
from flexinfer.kernels.rope import Rope
from flexinfer.models.decoder import Layer, Pieces, Stream, Walker
from flexinfer.models.facts import activation_of, frequencies_of, head_of, layer_types_of, window_of
from flexinfer.models.layers import group
from flexinfer.models.rope import rope_kind
from flexinfer.models.source import Source


class LlamaLayer(NamedTuple):
    """Weights of one block; `next_norm` is the first norm of the block after it, or the final."""

    qkv: Group
    head_norms: tuple[Tensor, Tensor] | None
    output: Leaf
    mlp_norm: Tensor
    gate_up: Group
    down: Leaf
    next_norm: Tensor


@dataclass(frozen=True)
class LlamaShape:
    """Static facts of a block."""

    head_dim: int
    eps: float
    activation: str


class LlamaEnds(NamedTuple):
    """Weights before the first block and after the last; `inv_freq` is fp32 [D/2]."""

    embedding: Tensor
    first_norm: Tensor
    inv_freq: Tensor
    head: Leaf


@dataclass(frozen=True)
class LlamaEndsShape:
    """Static facts of embed and head."""

    eps: float
    rope_factor: float


def embed(
    ops: Ops, ends: LlamaEnds, shape: LlamaEndsShape, tokens_T: Tensor, positions_T: Tensor
) -> Stream:
    """Look the tokens up and prepare the first norm and the rope tables."""
    hidden, normed = ops.embed(tokens_T, ends.embedding, 1.0, ends.first_norm, shape.eps, False)
    rope = ops.rope(positions_T, ends.inv_freq, shape.rope_factor, hidden.dtype)
    return Stream(hidden, normed, (rope,))


def block(
    ops: Ops,
    weights: LlamaLayer,
    shape: LlamaShape,
    residual_TE: Tensor,
    normed_TE: Tensor,
    per_layer: Tensor | None,
    rope: Rope,
    attend: LayerAttend,
) -> tuple[Tensor, Tensor]:
    """Run attention and MLP; return the residual and its norm for the next block."""
    q_norm, k_norm = weights.head_norms or (None, None)
    norms = HeadNorms(q_norm, k_norm, v=False, eps=shape.eps, late=False)
    q_THD = ops.heads(normed_TE, weights.qkv, shape.head_dim, norms, rope, attend)
    delta = ops.project(attend(q_THD).flatten(-2), weights.output)
    residual_TE, normed_TE = ops.add_norm(residual_TE, delta, weights.mlp_norm, shape.eps)
    inner = ops.gated(normed_TE, weights.gate_up, shape.activation)
    delta = ops.project(inner, weights.down)
    return ops.add_norm(residual_TE, delta, weights.next_norm, shape.eps)


def head(ops: Ops, ends: LlamaEnds, shape: LlamaEndsShape, normed_KE: Tensor) -> Tensor:
    """Return logits [K, V]."""
    return ops.head(normed_KE, ends.head, None)


def build(config: Mapping[str, Any], source: Source) -> Walker:
    """Build the walker of a Llama, or of a relative with q/k norms (found by their names)."""
    layers = _layers(config, source)
    embedding = source.tensor("embed_tokens.weight")
    rope = rope_kind(
        config["rope_parameters"], layers[0].shape.head_dim, config["max_position_embeddings"]
    )
    ends = LlamaEnds(
        embedding=embedding,
        first_norm=source.tensor("layers.0.input_layernorm.weight"),
        inv_freq=frequencies_of(rope, source, embedding.device),
        head=head_of(config, source),
    )
    shape = LlamaEndsShape(config["rms_norm_eps"], rope.factor)
    return Walker(
        Pieces(embed, block, head), layers, ends, shape, ends.head.rows, narrow_at=len(layers)
    )


def _layers(config: Mapping[str, Any], source: Source) -> tuple[Layer, ...]:
    """Build all layers."""
    n_layers = config["num_hidden_layers"]
    norms = [f"layers.{i}.input_layernorm.weight" for i in range(1, n_layers)] + ["norm.weight"]
    return tuple(
        _layer(config, source, index, source.tensor(name)) for index, name in enumerate(norms)
    )


def _layer(config: Mapping[str, Any], source: Source, index: int, next_norm: Tensor) -> Layer:
    """Build layer `index`; the head dim is taken from the q projection."""
    at = f"layers.{index}."
    weights = LlamaLayer(
        qkv=group(*(source.linear(f"{at}self_attn.{name}_proj") for name in "qkv")),
        head_norms=_head_norms(source, at + "self_attn."),
        output=source.linear(at + "self_attn.o_proj"),
        mlp_norm=source.tensor(at + "post_attention_layernorm.weight"),
        gate_up=group(*(source.linear(f"{at}mlp.{name}_proj") for name in ("gate", "up"))),
        down=source.linear(at + "mlp.down_proj"),
        next_norm=next_norm,
    )
    heads = config["num_attention_heads"]
    head_dim = weights.qkv.widths[0] // heads
    spec = LayerSpec(
        index=index,
        heads=heads,
        kv_heads=weights.qkv.widths[1] // head_dim,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=window_of(config, layer_types_of(config)[index]),
        kv_layer=index,
    )
    shape = LlamaShape(head_dim, config["rms_norm_eps"], activation_of(config["hidden_act"]))
    return Layer(spec, weights, shape)


def _head_norms(source: Source, at: str) -> tuple[Tensor, Tensor] | None:
    """Return the per-head norms of q and k where the checkpoint has them."""
    if not source.has(at + "q_norm.weight"):
        return None
    return source.tensor(at + "q_norm.weight"), source.tensor(at + "k_norm.weight")
