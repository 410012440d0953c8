"""What a model will ask the tile table for: its decoder walks one token, and every look-up is kept.

Shape letters: T tokens, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flexinfer.attention.spec import LayerSpec
from flexinfer.kernels.fast.ops import KNOWN
from flexinfer.kernels.fast.tuning.tune import Shapes
from flexinfer.kernels.heads import HeadNorms, KVStore
from flexinfer.kernels.linear import Dense, Group, Leaf, Packed, Separate
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import Nf4
from flexinfer.kernels.ops import PlainOps, Projected
from flexinfer.kernels.rope import Rope
from flexinfer.models.decoder import Decoder


class Lookups(PlainOps):
    """Plain operations that keep the shapes which TritonOps would look up, in order.

    All are dicts of (outputs, inputs) without values: ordered sets.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.products: dict[tuple[int, int], None] = {}
        self.gated_products: dict[tuple[int, int], None] = {}
        self.sides: dict[tuple[int, int], None] = {}
        self.nf4: dict[tuple[int, int], None] = {}
        self.nf4_sides: dict[tuple[int, int], None] = {}

    def _see(self, leaf: Leaf) -> None:
        """Keep the shape of a matrix without a bias, alone or under an adapter."""
        base = leaf.base if isinstance(leaf, Adapted) else leaf
        if isinstance(base, Dense) and base.bias is None:
            self.products[base.rows, base.columns] = None
        self._see_packed(base)

    def _see_packed(self, leaf: Leaf) -> None:
        """Keep the shape of a matrix of 4-bit weights, which are looked up wherever they are."""
        base = leaf.base if isinstance(leaf, Adapted) else leaf
        if isinstance(base, Nf4) and base.bias is None:
            self.nf4[base.rows, base.columns] = None

    def _see_members(self, group: Group) -> None:
        """Keep the shapes of the 4-bit members of a group that are multiplied one by one."""
        for leaf in group.members if isinstance(group, Separate) else ():
            self._see_packed(leaf)

    def project(self, x: Tensor, leaf: Leaf) -> Projected:
        """See Ops."""
        self._see(leaf)
        return super().project(x, leaf)

    def linear(self, x: Tensor, leaf: Leaf) -> Tensor:
        """See Ops."""
        self._see(leaf)
        return super().linear(x, leaf)

    def head(self, x: Tensor, leaf: Leaf, cap: float | None) -> Tensor:
        """See Ops."""
        self._see(leaf)
        return super().head(x, leaf, cap)

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops."""
        if isinstance(group, Packed):
            self._see(group.whole)
        elif isinstance(group, Separate) and len(group.members) == 1:
            self._see(group.members[0])
        self._see_members(group)
        return super().heads(x, group, head_dim, norms, rope, kv)

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """See Ops."""
        if isinstance(gate_up, Packed):
            self._see_gated(gate_up.whole, activation in KNOWN)
        self._see_members(gate_up)
        return super().gated(x, gate_up, activation)

    def _see_gated(self, leaf: Leaf, fused: bool) -> None:
        """Keep the shapes of gate and up, as one product and, where it is `fused`, as a gated one.

        The one product is what runs beside an adapter's ranks, and engines of one model differ in
        whether they have some.
        """
        base = leaf.base if isinstance(leaf, Adapted) else leaf
        if not fused or not isinstance(base, Dense | Nf4) or base.bias is not None:
            self._see_packed(base)
        elif isinstance(base, Nf4):
            self.nf4_sides[base.rows, base.columns] = None
        else:
            self.gated_products[base.rows // 2, base.columns] = None
            self.sides[base.rows, base.columns] = None

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """See Ops."""
        self._see(gate)
        return super().input_gate(x, gate, extra_TP, activation)


class _NoAttention:
    """The hole of a walk whose numbers nobody reads: queries go through."""

    def __call__(self, spec: LayerSpec, /) -> _Hole:
        """Return a layer's hole."""
        return _Hole()

    def kept(self) -> _NoAttention:
        """Return the same."""
        return self


class _Hole:
    """Attention that stores nothing and returns its queries."""

    def store(self, k_TGD: Tensor, v_TGD: Tensor, /) -> None:
        """Keep nothing."""

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Refuse: plain operations store."""
        raise AssertionError("plain operations address no pages")

    def __call__(self, q_THD: Tensor, /) -> Tensor:
        """Return [T, H, D]."""
        return q_THD


def shapes_of(decoder: Decoder, device: torch.device) -> Shapes:
    """Return every shape that a step of the decoder looks up; its weights lie on `device`."""
    lookups = Lookups()
    token = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.no_grad():
        decoder.with_ops(lookups)(token, token, _NoAttention(), None)
    return Shapes(
        products=tuple(lookups.products),
        gated=tuple(lookups.gated_products),
        decode=_decode_shapes(decoder.specs),
        prefill=_prefill_shapes(decoder.specs),
        sides=tuple(lookups.sides),
        nf4=tuple(lookups.nf4),
        nf4_sides=tuple(lookups.nf4_sides),
    )


def _decode_shapes(specs: Iterable[LayerSpec]) -> tuple[tuple[int, int, int], ...]:
    """Return (query heads a kv head, head dim, kv heads) of all layers."""
    found = ((s.heads // s.kv_heads, s.head_dim, s.kv_heads) for s in specs)
    return tuple(dict.fromkeys(found))


def _prefill_shapes(specs: Iterable[LayerSpec]) -> tuple[tuple[int, int, int, int], ...]:
    """Return (head dim, heads, kv heads, window or 0) of the first layer of each head dim."""
    found: dict[int, tuple[int, int, int, int]] = {}
    for s in specs:
        found.setdefault(s.head_dim, (s.head_dim, s.heads, s.kv_heads, s.window or 0))
    return tuple(found.values())
