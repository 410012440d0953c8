"""All operations, recorded: a form of Ops that hands every call on and notes what it moves.

Bytes are of arguments and results, as they are: partial sums of a split product count as they lie.
An embedding counts the rows that are gathered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flexinfer.kernels.heads import HeadNorms, KVStore
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.ops import Ops, Projected
from flexinfer.kernels.rope import Rope
from flexinfer.tasks.bench.profile.record import Op, Recorder, size

QKV, WRITE, WHOLE = "qkv product", "norm, rope, KV write", "qkv, norm, rope, KV write"
"""The two kernels of `heads`; and all of it, where it does not show where one ends."""
ATTEND = "attention"
PRODUCTS = {ATTEND: "o product", "gate, up, act": "down product", "per-layer gate": "per-layer out"}
"""What a projection is called, by the operation before it."""


class WatchedStore:
    """A KV store that tells when its addresses are taken: the product before it is done then."""

    def __init__(self, inner: KVStore, taken: Callable[[], None]) -> None:
        """Hand everything on to `inner`."""
        self._inner, self._taken = inner, taken

    def store(self, k_TGD: Tensor, v_TGD: Tensor, /) -> None:
        """See KVStore."""
        self._inner.store(k_TGD, v_TGD)

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """See KVStore."""
        self._taken()
        return self._inner.paged()


class RecordingOps:
    """See kernels.ops.Ops: `inner` computes, `recorder` notes."""

    def __init__(self, inner: Ops, recorder: Recorder) -> None:
        """Take the form that computes."""
        self._inner, self._recorder = inner, recorder

    def embed(
        self, tokens: Tensor, table: Tensor, scale: float, weight: Tensor, eps: float, late: bool
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        op = Op("embed, norm", _shape(tokens, table), _rows(tokens, table) + size(tokens, weight))
        given = (tokens, table, scale, weight, eps, late)
        return self._recorder.run(op, lambda: self._inner.embed(*given))

    def rope(self, positions: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype) -> Rope:
        """See Ops."""
        op = Op("rope tables", f"{len(positions)}x{2 * len(inv_freq)}", size(positions, inv_freq))
        given = (positions, inv_freq, factor, dtype)
        return self._recorder.run(op, lambda: self._inner.rope(*given))

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
        reads = _rows(tokens, table) + size(tokens, context, weight)
        op = Op("per-layer inputs", _shape(tokens, table), reads)
        given = (tokens, table, context, weight, table_scale, context_scale, eps)
        return self._recorder.run(op, lambda: self._inner.layer_inputs(*given))

    def project(self, x: Tensor, leaf: Leaf) -> Projected:
        """See Ops."""
        name = next((op.name for op in self._recorder.ops[::-1] if op.name in PRODUCTS), "")
        op = Op(PRODUCTS.get(name, "product"), _product(x, leaf.rows), size(x, leaf), layered=True)
        return self._recorder.run(op, lambda: self._inner.project(x, leaf))

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops; the raw projections in between are counted where they show as two kernels."""
        widths, unit = group.widths, x.shape[0] * x.element_size()
        shape, between = _product(x, *widths), unit * sum(widths)
        stored = 2 * unit * widths[1] if len(widths) > 1 else 0
        weights, around, writes = size(x, group), size(norms, rope), unit * widths[0] + stored
        first = Op(QKV, shape, weights, between, layered=True)
        second = Op(WRITE, shape.split(" -> ")[-1], around + between, writes, layered=True)
        watched = WatchedStore(kv, lambda: self._recorder.become(first, second))
        return self._recorder.run(
            Op(WHOLE, shape, weights + around, writes, layered=True),
            lambda: self._inner.heads(x, group, head_dim, norms, rope, watched),
        )

    def add_norm(
        self, residual: Tensor, delta: Projected, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        shape = f"{residual.shape[0]}x{residual.shape[1]}"
        op = Op("add, norm", shape, size(residual, delta, weight), layered=True)
        return self._recorder.run(op, lambda: self._inner.add_norm(residual, delta, weight, eps))

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
        name = "norm, add" if after is None else "norm, add, norm"
        given = (residual, delta, post, scalar, after, eps)
        shape = f"{residual.shape[0]}x{residual.shape[1]}"
        op = Op(name, shape, size(given[:5]), layered=True)
        return self._recorder.run(op, lambda: self._inner.post_norm(*given))

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """See Ops."""
        op = Op("gate, up, act", _product(x, *gate_up.widths), size(x, gate_up), layered=True)
        return self._recorder.run(op, lambda: self._inner.gated(x, gate_up, activation))

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """See Ops."""
        op = Op("per-layer gate", _product(x, gate.rows), size(x, gate, extra_TP), layered=True)
        return self._recorder.run(op, lambda: self._inner.input_gate(x, gate, extra_TP, activation))

    def linear(self, x: Tensor, leaf: Leaf) -> Tensor:
        """See Ops."""
        op = Op("product once a step", _product(x, leaf.rows), size(x, leaf))
        return self._recorder.run(op, lambda: self._inner.linear(x, leaf))

    def head(self, x: Tensor, leaf: Leaf, cap: float | None) -> Tensor:
        """See Ops."""
        op = Op("head", _product(x, leaf.rows), size(x, leaf))
        return self._recorder.run(op, lambda: self._inner.head(x, leaf, cap))


def _product(x: Tensor, *outputs: int) -> str:
    """Say what a product multiplies."""
    return f"{x.shape[0]}x{x.shape[1]} -> {'+'.join(map(str, outputs))}"


def _shape(tokens: Tensor, table: Tensor) -> str:
    """Say what is gathered."""
    return f"{tokens.shape[0]}x{table.shape[1]}"


def _rows(tokens: Tensor, table: Tensor) -> int:
    """Return the bytes of the rows that tokens gather."""
    return tokens.shape[0] * table.shape[1] * table.element_size()
