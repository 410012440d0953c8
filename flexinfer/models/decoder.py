"""The decoder protocol, and the walk that all families share.

A family gives three pure functions (embed, block, head) and its weights; the walk carries a stream
of hidden rows through the layers. Between blocks the stream holds each row twice: the residual and
the residual under the next block's first norm, so that an add and the norm after it are one
operation also across layers (the last block applies the final norm).

Shape letters: T tokens of a step, K kept rows, E hidden size, L layers, P per-layer input size,
V vocabulary, H query heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

from flexinfer.attention.spec import Attend, LayerAttend, LayerSpec
from flexinfer.kernels.ops import Ops, PlainOps
from flexinfer.kernels.rope import Rope

F = TypeVar("F", bound=Callable[..., Any])


class Transform(Protocol):
    """Something that wraps a pure function and keeps its signature, such as torch.compile."""

    def __call__(self, function: F, /) -> F:
        """Return the wrapped function."""
        ...


def unchanged(function: F) -> F:
    """Return the function as it is: the transform of whoever compiles nothing."""
    return function


class Decoder(Protocol):
    """A language model over packed tokens with one hole, attention."""

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """Attention of each layer, in order."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of logits of a row."""
        ...

    def __call__(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, keep_K: Tensor | None = None
    ) -> Tensor:
        """Return logits [K, V] of the rows `keep` (None: all T) in the compute dtype.

        Tokens, positions and keep are int64. K may be 0: layers that only feed logits are skipped.
        """
        ...

    def transformed(self, transform: Transform) -> Self:
        """Return a copy whose pure functions are wrapped by `transform`."""
        ...

    def with_ops(self, ops: Ops) -> Self:
        """Return a copy that computes by another form of the operations."""
        ...


class Stream(NamedTuple):
    """What flows between blocks: hidden rows, the ropes of their positions, per-layer inputs."""

    residual_TE: Tensor
    normed_TE: Tensor
    ropes: tuple[Rope, ...]
    per_layer_TLP: Tensor | None = None

    def rows(self, keep_K: Tensor) -> Stream:
        """Return the stream of the rows `keep` only."""
        ropes = tuple(Rope(r.cos_TD[keep_K], r.sin_TD[keep_K]) for r in self.ropes)
        extra = None if self.per_layer_TLP is None else self.per_layer_TLP[keep_K]
        return Stream(self.residual_TE[keep_K], self.normed_TE[keep_K], ropes, extra)


Embed = Callable[[Ops, Any, Any, Tensor, Tensor], Stream]
"""embed(ops, ends, shape, tokens, positions): the stream before the first block."""
Block = Callable[
    [Ops, Any, Any, Tensor, Tensor, Tensor | None, Rope, LayerAttend], tuple[Tensor, Tensor]
]
"""block(ops, weights, shape, residual, normed, per_layer [T, P], rope, attend): both anew."""
Head = Callable[[Ops, Any, Any, Tensor], Tensor]
"""head(ops, ends, shape, normed): logits."""


class Pieces(NamedTuple):
    """The pure, module-level functions of a family."""

    embed: Embed
    block: Block
    head: Head


class Layer(NamedTuple):
    """One layer: weights (a tuple of tensors), static shape (no layer index) and its rope kind."""

    spec: LayerSpec
    weights: Any
    shape: Any
    rope: int = 0


@dataclass(frozen=True)
class Walker:
    """The Decoder of every family; from layer `narrow_at` on only kept rows are computed.

    `ends` are the weights of embed and head, `ends_shape` their static facts.
    """

    pieces: Pieces
    layers: tuple[Layer, ...]
    ends: Any
    ends_shape: Any
    vocab_size: int
    narrow_at: int
    ops: Ops = field(default_factory=PlainOps)

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """Attention of each layer, in order."""
        return tuple(layer.spec for layer in self.layers)

    def transformed(self, transform: Transform) -> Self:
        """Return a copy whose pure functions are wrapped by `transform`."""
        embed, block, head = self.pieces
        return replace(self, pieces=Pieces(transform(embed), transform(block), transform(head)))

    def with_ops(self, ops: Ops) -> Self:
        """Return a copy that computes by another form of the operations."""
        return replace(self, ops=ops)

    def __call__(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, keep_K: Tensor | None = None
    ) -> Tensor:
        """Return logits [K, V] of the rows `keep`; see Decoder."""
        stream = self.pieces.embed(self.ops, self.ends, self.ends_shape, tokens_T, positions_T)
        stream = self._walk(0, self.narrow_at, stream, attend)
        if keep_K is None:
            stream = self._walk(self.narrow_at, len(self.layers), stream, attend)
        elif keep_K.shape[0] == 0:
            return stream.normed_TE.new_empty(0, self.vocab_size)
        else:
            stream = stream.rows(keep_K)
            if self.narrow_at < len(self.layers):
                stream = self._walk(self.narrow_at, len(self.layers), stream, attend.kept())
        return self.pieces.head(self.ops, self.ends, self.ends_shape, stream.normed_TE)

    def _walk(self, start: int, end: int, stream: Stream, attend: Attend) -> Stream:
        """Take the stream through layers [start, end)."""
        residual, normed, ropes, extra_TLP = stream
        for index in range(start, end):
            spec, weights, shape, rope = self.layers[index]
            extra = None if extra_TLP is None else extra_TLP[:, index]
            hole = attend(spec)
            residual, normed = self.pieces.block(
                self.ops, weights, shape, residual, normed, extra, ropes[rope], hole
            )
        return Stream(residual, normed, ropes, extra_TLP)
