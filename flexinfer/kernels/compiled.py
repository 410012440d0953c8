"""The plain operations, each compiled once for any number of rows: the portable path's prefill.

A prefill step has a different number of rows every time, so nothing is specialised on it; products
stay the library's, and what lies between them becomes a few fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flexinfer.kernels.heads import HeadNorms, KVStore
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.ops import PlainOps, Projected
from flexinfer.kernels.rope import Rope


def any_rows(*tensors: Tensor) -> None:
    """Leave the first dimension open for the compiler; one row alone is specialised on."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


class CompiledOps(PlainOps):
    """See kernels.ops.Ops; what is not overridden runs once a step and stays as it is."""

    def __init__(self, compiler: Callable[..., Any] = torch.compile) -> None:
        """Wrap by `compiler`; what it returns compiles when it first meets a kind of layer."""
        plain = PlainOps()
        self._heads = compiler(plain.heads, fullgraph=True)
        self._add_norm = compiler(plain.add_norm, fullgraph=True)
        self._post_norm = compiler(plain.post_norm, fullgraph=True)
        self._gated = compiler(plain.gated, fullgraph=True)
        self._input_gate = compiler(plain.input_gate, fullgraph=True)

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops."""
        any_rows(x, *rope, kv.paged()[1])
        queries: Tensor = self._heads(x, group, head_dim, norms, rope, kv)
        return queries

    def add_norm(
        self, residual: Tensor, delta: Projected, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        any_rows(residual, delta)
        both: tuple[Tensor, Tensor] = self._add_norm(residual, delta, weight, eps)
        return both

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
        any_rows(residual, delta)
        both: tuple[Tensor, Tensor] = self._post_norm(residual, delta, post, scalar, after, eps)
        return both

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """See Ops."""
        any_rows(x)
        result: Tensor = self._gated(x, gate_up, activation)
        return result

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """See Ops."""
        any_rows(x, extra_TP)
        result: Tensor = self._input_gate(x, gate, extra_TP, activation)
        return result
