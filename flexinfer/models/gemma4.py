"""Gemma-4 text: sandwich norms, two attention regimes, KV sharing, per-layer inputs, softcap.

Shape letters: T tokens, E hidden size, L layers, P per-layer input size, H query heads, G kv heads,
D head dim (which may differ between sliding and full layers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from flexinfer.attention.spec import LayerAttend
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.ops import Ops
from flexinfer.kernels.rope import Rope
from flexinfer.models.decoder import Stream


class PerLayer(NamedTuple):
    """Weights of a block's per-layer-input residual."""

    gate: Leaf
    projection: Leaf
    norm: Tensor


class Gemma4Layer(NamedTuple):
    """Weights of one block; `next_norm` is the first norm of the block after it, or the final.

    `projections` are q (another layer's KV is read), q and k (k is also the raw v), or q, k, v.
    """

    projections: Group
    q_norm: Tensor
    k_norm: Tensor | None
    output: Leaf
    attention_norm: Tensor
    mlp_norm: Tensor
    gate_up: Group
    down: Leaf
    output_norm: Tensor
    per_layer: PerLayer | None
    scalar: Tensor
    next_norm: Tensor


@dataclass(frozen=True)
class Gemma4Shape:
    """Static facts of a block."""

    head_dim: int
    eps: float
    activation: str


class PerLayerEnds(NamedTuple):
    """Weights that make the per-layer inputs of all layers: `table` is [vocab, L * P]."""

    table: Tensor
    projection: Leaf
    norm: Tensor


class Gemma4Ends(NamedTuple):
    """Weights before the first block and after the last; one fp32 [D/2] `inv_freqs` a rope kind."""

    embedding: Tensor
    first_norm: Tensor
    inv_freqs: tuple[Tensor, ...]
    per_layer: PerLayerEnds | None
    head: Leaf


@dataclass(frozen=True)
class Gemma4EndsShape:
    """Static facts of embed and head; scales as rounded to the weights' dtype."""

    eps: float
    rope_factors: tuple[float, ...]
    embed_scale: float
    table_scale: float
    projection_scale: float
    softcap: float | None


def embed(
    ops: Ops, ends: Gemma4Ends, shape: Gemma4EndsShape, tokens_T: Tensor, positions_T: Tensor
) -> Stream:
    """Look the tokens up, scaled; prepare the first norm, both ropes and all per-layer inputs."""
    hidden, normed = ops.embed(
        tokens_T, ends.embedding, shape.embed_scale, ends.first_norm, shape.eps, True
    )
    ropes = tuple(
        ops.rope(positions_T, inv_freq, factor, hidden.dtype)
        for inv_freq, factor in zip(ends.inv_freqs, shape.rope_factors, strict=True)
    )
    if ends.per_layer is None:
        return Stream(hidden, normed, ropes)
    context = ops.linear(hidden, ends.per_layer.projection)
    per_layer = ops.layer_inputs(
        tokens_T, ends.per_layer.table, context, ends.per_layer.norm, shape.table_scale,
        shape.projection_scale, shape.eps,
    )  # fmt: skip
    return Stream(hidden, normed, ropes, per_layer)


def block(
    ops: Ops,
    weights: Gemma4Layer,
    shape: Gemma4Shape,
    residual_TE: Tensor,
    normed_TE: Tensor,
    per_layer_TP: Tensor | None,
    rope: Rope,
    attend: LayerAttend,
) -> tuple[Tensor, Tensor]:
    """Run attention, MLP and the per-layer input; return the residual and its norm for the next."""
    eps, act = shape.eps, shape.activation
    norms = HeadNorms(weights.q_norm, weights.k_norm, v=True, eps=eps, late=True)
    q_THD = ops.heads(normed_TE, weights.projections, shape.head_dim, norms, rope, attend)
    delta = ops.project(attend(q_THD).flatten(-2), weights.output)
    residual_TE, normed_TE = ops.post_norm(
        residual_TE, delta, weights.attention_norm, None, weights.mlp_norm, eps
    )
    delta = ops.project(ops.gated(normed_TE, weights.gate_up, act), weights.down)
    if weights.per_layer is None:
        return ops.post_norm(
            residual_TE, delta, weights.output_norm, weights.scalar, weights.next_norm, eps
        )
    assert per_layer_TP is not None
    residual_TE, _ = ops.post_norm(residual_TE, delta, weights.output_norm, None, None, eps)
    inner = ops.input_gate(residual_TE, weights.per_layer.gate, per_layer_TP, act)
    delta = ops.project(inner, weights.per_layer.projection)
    return ops.post_norm(
        residual_TE, delta, weights.per_layer.norm, weights.scalar, weights.next_norm, eps
    )


def head(ops: Ops, ends: Gemma4Ends, shape: Gemma4EndsShape, normed_KE: Tensor) -> Tensor:
    """Return logits [K, V], softcapped where the model does that."""
    return ops.head(normed_KE, ends.head, shape.softcap)
