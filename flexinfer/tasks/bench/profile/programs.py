"""A decode program of which every operation is recorded; the one it is made from is untouched.

Bytes are of arguments and results, as they are: partial sums of a split product count as they lie.
An embedding counts the rows that are gathered, attention what its rows attend to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import Tensor

from flexinfer.attention.kernel import AttentionKernels, RowKernel
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.steps.programs import Programs
from flexinfer.kernels.heads import HeadNorms, KVStore
from flexinfer.kernels.linear import Group, Leaf
from flexinfer.kernels.ops import Ops
from flexinfer.kernels.rope import Rope
from flexinfer.models.decoder import F, Walker, unchanged
from flexinfer.tasks.bench.profile.record import Op, Recorder, size

QKV, WRITE, WHOLE = "qkv product", "norm, rope, KV write", "qkv, norm, rope, KV write"
"""The two kernels of `heads`; and all of it, where it does not show where one ends."""
ATTEND = "attention"
PRODUCTS = {ATTEND: "o product", "gate, up, act": "down product", "per-layer gate": "per-layer out"}
"""What a projection is called, by the operation before it."""
Reach = Callable[[int | None], float]
"""reach(window): tokens that all rows of a step together attend to."""


def recorded(programs: Programs, recorder: Recorder, reach: Reach) -> Programs | None:
    """Return programs whose decode is recorded; None where its blocks are compiled as a whole."""
    decoder = programs.decode_decoder
    if programs.transform is not unchanged or not isinstance(decoder, Walker):
        return None

    def look_up(function: F, /) -> F:
        return cast(F, recorder.watched(function, lambda *given: Op("look-up")))

    return replace(
        programs,
        decode_decoder=decoder.with_ops(RecordingOps(decoder.ops, recorder)),
        kernels=RecordingKernels(programs.kernels, recorder, reach),
        transform=look_up,
        feed=recorder.watched(
            programs.feed, lambda logits, *given: Op("sample", _grid(logits), size(logits))
        ),
    )


class RecordingKernels:
    """See attention.kernel.AttentionKernels: decode attention is recorded."""

    def __init__(self, inner: AttentionKernels, recorder: Recorder, reach: Reach) -> None:
        """Take the back end that computes."""
        self.row_mask, self.tile_mask, self.tiles = inner.row_mask, inner.tile_mask, inner.tiles
        self._inner, self._recorder, self._reach = inner, recorder, reach

    def rows(self, spec: LayerSpec) -> RowKernel:
        """See AttentionKernels; reads queries, and of the cache what the rows attend to."""
        sight = "" if spec.window is None else f", window {spec.window}"
        heads = f"{spec.heads}/{spec.kv_heads} heads of {spec.head_dim}{sight}"
        values = 2 * spec.kv_heads * spec.head_dim * self._reach(spec.window)

        def op(q_BHD: Tensor, k: Tensor, v: Tensor, mask: Any) -> Op:
            reads = size(q_BHD) + round(values * k.element_size())
            return Op(ATTEND, f"{q_BHD.shape[0]} x {heads}", reads, layered=True)

        return self._recorder.watched(self._inner.rows(spec), op)


class WatchedStore:
    """A KV store that tells when its addresses are taken: the product before it is done then."""

    def __init__(self, inner: KVStore, taken: Callable[[], None]) -> None:
        """Hand everything on to `inner`."""
        self._inner, self._taken, self.store = inner, taken, inner.store

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """See KVStore."""
        self._taken()
        return self._inner.paged()


class RecordingOps:
    """See kernels.ops.Ops: `inner` computes, `recorder` notes."""

    def __init__(self, inner: Ops, recorder: Recorder) -> None:
        """Take the form that computes."""
        self._inner, self._recorder, watched = inner, recorder, recorder.watched
        self.embed = watched(inner.embed, partial(_gather, "embed, norm"))
        self.layer_inputs = watched(inner.layer_inputs, partial(_gather, "per-layer inputs"))
        self.rope = watched(inner.rope, _rope)
        self.project = watched(inner.project, lambda x, leaf: _product(self._after(), x, leaf))
        self.add_norm = watched(inner.add_norm, partial(_norm, "add, norm"))
        self.post_norm = watched(inner.post_norm, _post_norm)
        self.gated = watched(inner.gated, _gated)
        self.input_gate = watched(inner.input_gate, partial(_product, "per-layer gate"))
        once = partial(_product, layered=False)
        self.linear = watched(inner.linear, partial(once, "product once a step"))
        self.head = watched(inner.head, partial(once, "head"))

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops; the raw projections in between are counted where they show as two kernels."""
        widths, unit = group.widths, x.shape[0] * x.element_size()
        shape, between = _shape(x, *widths), unit * sum(widths)
        stored = 2 * unit * widths[1] if len(widths) > 1 else 0
        weights, around, writes = size(x, group), size(norms, rope), unit * widths[0] + stored
        first = Op(QKV, shape, weights, between, layered=True)
        second = Op(WRITE, shape.split(" -> ")[-1], around + between, writes, layered=True)
        store = WatchedStore(kv, lambda: self._recorder.become(first, second))
        return self._recorder.run(
            Op(WHOLE, shape, weights + around, writes, layered=True),
            lambda: self._inner.heads(x, group, head_dim, norms, rope, store),
        )

    def _after(self) -> str:
        """Return the name of a projection here."""
        before = (op.name for op in self._recorder.ops[::-1] if op.name in PRODUCTS)
        return PRODUCTS.get(next(before, ""), "product")


def _gather(name: str, tokens: Tensor, table: Tensor, *given: Any) -> Op:
    """Return an operation that begins with rows of a table."""
    rows = tokens.shape[0] * table.shape[1] * table.element_size()
    return Op(name, f"{tokens.shape[0]}x{table.shape[1]}", rows + size(tokens, *given))


def _rope(positions: Tensor, inv_freq: Tensor, *given: Any) -> Op:
    """Return the making of rope tables."""
    shape = f"{len(positions)}x{2 * len(inv_freq)}"
    return Op("rope tables", shape, size(positions, inv_freq))


def _norm(name: str, residual: Tensor, *given: Any) -> Op:
    """Return an operation on the residual stream."""
    return Op(name, _grid(residual), size(residual, *given), layered=True)


def _post_norm(residual: Tensor, delta: Any, post: Tensor, scalar: Any, after: Any, _: float) -> Op:
    """Return Gemma's norm of what is added, and the norm after it where there is one."""
    name = "norm, add" if after is None else "norm, add, norm"
    return _norm(name, residual, delta, post, scalar, after)


def _gated(x: Tensor, gate_up: Group, _: str) -> Op:
    """Return the gated product."""
    return Op("gate, up, act", _shape(x, *gate_up.widths), size(x, gate_up), layered=True)


def _product(name: str, x: Tensor, leaf: Leaf, *given: Any, layered: bool = True) -> Op:
    """Return a product."""
    return Op(name, _shape(x, leaf.rows), size(x, leaf, *given), layered=layered)


def _shape(x: Tensor, *outputs: int) -> str:
    """Say what a product multiplies."""
    return f"{_grid(x)} -> {'+'.join(map(str, outputs))}"


def _grid(x: Tensor) -> str:
    """Say how large a matrix is."""
    return f"{x.shape[0]}x{x.shape[1]}"
