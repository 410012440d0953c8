"""Gemma-4 text: sandwich norms, two attention regimes, KV sharing, per-layer inputs, softcap.

Shape letters: T tokens, E hidden size, L layers, P per-layer input size, H query heads, G kv heads,
D head dim (which may differ between sliding and full layers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.attention.spec import LayerAttend
from flexinfer.kernels.mlp import activate, gated
from flexinfer.kernels.norms import rms_norm_fp32
from flexinfer.kernels.rope import Rope, apply_rope, rope_tables
from flexinfer.models.decoder import Stream
from flexinfer.models.layers import Group, Leaf


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
    ends: Gemma4Ends, shape: Gemma4EndsShape, tokens_T: Tensor, positions_T: Tensor
) -> Stream:
    """Look the tokens up, scaled; prepare the first norm, both ropes and all per-layer inputs."""
    hidden = F.embedding(tokens_T, ends.embedding) * shape.embed_scale
    ropes = tuple(
        rope_tables(positions_T, inv_freq, factor, hidden.dtype)
        for inv_freq, factor in zip(ends.inv_freqs, shape.rope_factors, strict=True)
    )
    normed = rms_norm_fp32(hidden, ends.first_norm, shape.eps)
    if ends.per_layer is None:
        return Stream(hidden, normed, ropes)
    return Stream(hidden, normed, ropes, _per_layer(ends.per_layer, shape, tokens_T, hidden))


def _per_layer(
    ends: PerLayerEnds, shape: Gemma4EndsShape, tokens_T: Tensor, hidden_TE: Tensor
) -> Tensor:
    """Return the inputs [T, L, P]: the token's table row and the projected embedding, averaged."""
    split = (tokens_T.shape[0], -1, ends.norm.shape[0])
    token = (F.embedding(tokens_T, ends.table) * shape.table_scale).view(split)
    context = (ends.projection(hidden_TE) * shape.projection_scale).view(split)
    total = rms_norm_fp32(context, ends.norm, shape.eps) + token
    return total * math.sqrt(0.5)


def block(
    weights: Gemma4Layer,
    shape: Gemma4Shape,
    residual_TE: Tensor,
    normed_TE: Tensor,
    per_layer_TP: Tensor | None,
    rope: Rope,
    attend: LayerAttend,
) -> tuple[Tensor, Tensor]:
    """Run attention, MLP and the per-layer input; return the residual and its norm for the next."""
    eps = shape.eps
    delta = weights.output(_mixed(weights, shape, normed_TE, rope, attend))
    residual_TE = residual_TE + rms_norm_fp32(delta, weights.attention_norm, eps)
    gate, up = weights.gate_up(rms_norm_fp32(residual_TE, weights.mlp_norm, eps))
    delta = weights.down(gated(gate, up, shape.activation))
    residual_TE = residual_TE + rms_norm_fp32(delta, weights.output_norm, eps)
    if weights.per_layer is not None:
        assert per_layer_TP is not None
        inner = activate(weights.per_layer.gate(residual_TE), shape.activation) * per_layer_TP
        delta = weights.per_layer.projection(inner)
        residual_TE = residual_TE + rms_norm_fp32(delta, weights.per_layer.norm, eps)
    residual_TE = (residual_TE * weights.scalar).to(residual_TE.dtype)
    return residual_TE, rms_norm_fp32(residual_TE, weights.next_norm, eps)


def _mixed(
    weights: Gemma4Layer, shape: Gemma4Shape, normed_TE: Tensor, rope: Rope, attend: LayerAttend
) -> Tensor:
    """Return the attention output [T, H * D] before its projection."""
    heads = (normed_TE.shape[0], -1, shape.head_dim)
    q, *kv = (part.view(heads) for part in weights.projections(normed_TE))
    q = apply_rope(rms_norm_fp32(q, weights.q_norm, shape.eps), rope)
    if weights.k_norm is None:
        return attend(q, None, None).flatten(-2)
    k = apply_rope(rms_norm_fp32(kv[0], weights.k_norm, shape.eps), rope)
    v = rms_norm_fp32(kv[-1], None, shape.eps)
    return attend(q, k, v).flatten(-2)


def head(ends: Gemma4Ends, shape: Gemma4EndsShape, normed_KE: Tensor) -> Tensor:
    """Return logits [K, V], softcapped where the model does that."""
    logits = ends.head(normed_KE)
    if shape.softcap is None:
        return logits
    return torch.tanh(logits / shape.softcap) * shape.softcap
