"""The operations that walkers are written in, and their plain form.

Speed lives behind this one seam: no walker knows which form runs. What `project` returns is for
another operation of the same form to read (`heads`, `add_norm`, `post_norm`): the fast form leaves
split-K partial sums in it.
Shape letters: T rows, E hidden size, H query heads, D head dim, P per-layer input size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from flexinfer.kernels.embed import embed, layer_inputs
from flexinfer.kernels.heads import HeadNorms, KVStore, heads
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.mlp import activate, gated
from flexinfer.kernels.norms import add_norm, rms_norm_fp32
from flexinfer.kernels.rope import Rope, rope_tables

Projected = Any
"""A projection's result, readable by operations of the form that made it."""


class Ops(Protocol):
    """One form of all operations."""

    def embed(
        self, tokens: Tensor, table: Tensor, scale: float, weight: Tensor, eps: float, late: bool
    ) -> tuple[Tensor, Tensor]:
        """Return h = table[tokens] scale, and norm(h) weight; see kernels.embed."""
        ...

    def rope(self, positions: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype) -> Rope:
        """Return the step's tables of one rope kind; see kernels.rope."""
        ...

    def layer_inputs(
        self,
        tokens: Tensor,
        table: Tensor,
        context: Tensor,
        weight: Tensor,
        table_scale: float,
        context_scale: float,
        eps: float,
    ) -> Tensor:
        """Return Gemma's per-layer inputs of all layers; see kernels.embed."""
        ...

    def project(self, x: Tensor, leaf: Leaf) -> Projected:
        """Multiply [T, in] by a linear map, for `add_norm` or `post_norm`."""
        ...

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """Project [T, E] to q, k, v; norm, rotate, store k and v; return queries [T, H, D]."""
        ...

    def add_norm(
        self, residual: Tensor, delta: Projected, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return (residual + delta, its norm times `weight`, as Llama rounds it)."""
        ...

    def post_norm(
        self,
        residual: Tensor,
        delta: Projected,
        post: Tensor,
        scalar: Tensor | None,
        after: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """Return r = (residual + norm(delta) post) scalar and norm(r) after, as Gemma-4 rounds it.

        Without `scalar` nothing is scaled; without `after` the second is r itself.
        """
        ...

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """Return act(gate x) * (up x)."""
        ...

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """Return act(gate x) * extra."""
        ...

    def linear(self, x: Tensor, leaf: Leaf) -> Tensor:
        """Multiply [T, in] by a linear map, for anyone to read."""
        ...

    def head(self, x: Tensor, leaf: Leaf, cap: float | None) -> Tensor:
        """Return logits z = leaf(x), softcapped to cap tanh(z / cap) where there is a cap."""
        ...


class PlainOps:
    """Plain PyTorch: the oracle and, compiled, the portable path."""

    def embed(
        self, tokens: Tensor, table: Tensor, scale: float, weight: Tensor, eps: float, late: bool
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return embed(tokens, table, scale, weight, eps, late)

    def rope(self, positions: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype) -> Rope:
        """See Ops."""
        return rope_tables(positions, inv_freq, factor, dtype)

    def layer_inputs(
        self,
        tokens: Tensor,
        table: Tensor,
        context: Tensor,
        weight: Tensor,
        table_scale: float,
        context_scale: float,
        eps: float,
    ) -> Tensor:
        """See Ops."""
        return layer_inputs(tokens, table, context, weight, table_scale, context_scale, eps)

    def project(self, x: Tensor, leaf: Leaf) -> Projected:
        """See Ops."""
        return leaf(x)

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops."""
        return heads(group(x), head_dim, norms, rope, kv)

    def add_norm(
        self, residual: Tensor, delta: Projected, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return add_norm(residual, delta, weight, eps)

    def post_norm(
        self,
        residual: Tensor,
        delta: Projected,
        post: Tensor,
        scalar: Tensor | None,
        after: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = residual + rms_norm_fp32(delta, post, eps)
        if scalar is not None:
            total = (total * scalar).to(total.dtype)
        return total, total if after is None else rms_norm_fp32(total, after, eps)

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """See Ops."""
        gate, up = gate_up(x)
        return gated(gate, up, activation)

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """See Ops."""
        return activate(gate(x), activation) * extra_TP

    def linear(self, x: Tensor, leaf: Leaf) -> Tensor:
        """See Ops."""
        return leaf(x)

    def head(self, x: Tensor, leaf: Leaf, cap: float | None) -> Tensor:
        """See Ops."""
        logits = leaf(x)
        return logits if cap is None else torch.tanh(logits / cap) * cap
