"""The operations as Triton kernels, with cuBLAS where a measured table says so.

Adapters and 4-bit weights have products of their own for few rows. Every product too large for a
skinny kernel, and of every other leaf, goes through the leaf's own; the glue kernels serve any
number of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from flexinfer.kernels.fast.embed import embed, layer_inputs, rope_tables
from flexinfer.kernels.fast.gemm import filled_matmul, gated_matmul
from flexinfer.kernels.fast.glue import act_mul, softcap
from flexinfer.kernels.fast.lora.add import lora_add, lora_gated
from flexinfer.kernels.fast.lora.low import gated_tile, lora_linear, lora_matmul
from flexinfer.kernels.fast.nf4.lora import nf4_lora_matmul
from flexinfer.kernels.fast.nf4.matmul import nf4_dequantise, nf4_matmul
from flexinfer.kernels.fast.norms import add_norm, post_norm
from flexinfer.kernels.fast.per_layer import gate_fits, input_gate
from flexinfer.kernels.fast.rope_write import rope_write
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.heads import HeadNorms, KVStore
from flexinfer.kernels.linear import Dense, Group, Leaf, Packed, Separate
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.mlp import gated
from flexinfer.kernels.nf4 import Nf4
from flexinfer.kernels.rope import Rope

KNOWN = ("silu", "swish", "gelu_pytorch_tanh")
"""The activations that kernels compute; others go through the plain form."""
GATE_ROWS = 256
"""Up to how many rows the fused per-layer gate is used; it reads the weights once a 16 rows."""

SIDE_ROWS = 64
"""Up to how many rows a side path runs beside its base's product; beyond, products are large."""


class TritonOps:
    """See kernels.ops.Ops; results of `project` are [T, N] or fp32 partial sums [S, T, N]."""

    def __init__(self, table: TileTable) -> None:
        """Take the tiles of the device."""
        self._table = table

    def embed(
        self, tokens: Tensor, table: Tensor, scale: float, weight: Tensor, eps: float, late: bool
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return embed(tokens, table, scale, weight, eps, late)

    def rope(self, positions: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype) -> Rope:
        """See Ops."""
        return Rope(*rope_tables(positions, inv_freq, factor, dtype))

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

    def project(self, x: Tensor, leaf: Leaf) -> Tensor:
        """See Ops."""
        return self._product(x, leaf, split=True)

    def linear(self, x: Tensor, leaf: Leaf) -> Tensor:
        """See Ops."""
        return self._product(x, leaf, split=False)

    def head(self, x: Tensor, leaf: Leaf, cap: float | None) -> Tensor:
        """See Ops."""
        tile = self._tile(x, leaf, split=False)
        if tile is None or not isinstance(leaf, Dense):
            logits = self._whole(x, leaf)
            return logits if cap is None else softcap(logits, cap)
        return filled_matmul(x, leaf.weight, tile, cap or 0.0)

    def _tile(self, x: Tensor, leaf: Leaf, *, split: bool) -> Tile | None:
        """Return the table's tile, None for a product that goes through the leaf itself."""
        if not isinstance(leaf, Dense) or leaf.bias is not None:
            return None
        return self._table.matmul(x.shape[0], *leaf.weight.shape, split=split)

    def _product(
        self, x: Tensor, leaf: Leaf, *, split: bool, widths: tuple[int, ...] = ()
    ) -> Tensor:
        """Multiply by the table's tile, else by the leaf itself; `widths`: of a group's members."""
        if isinstance(leaf, Adapted) and self._beside(x, leaf):
            return lora_add(self._sides(x, leaf), leaf.b, *leaf.blocks(widths))
        if isinstance(leaf, Nf4):
            return self._packed(x, leaf, split=split)
        tile = self._tile(x, leaf, split=split)
        if tile is not None and isinstance(leaf, Dense):
            return filled_matmul(x, leaf.weight, tile)
        return self._whole(x, leaf)

    def _packed(self, x: Tensor, leaf: Nf4, *, split: bool) -> Tensor:
        """Multiply by 4-bit weights as they are where rows are few, else by what they stand for."""
        if not self._table.invariant and leaf.bias is None and x.dtype == leaf.dtype:
            tile = self._table.nf4(len(x), leaf.rows, leaf.columns, split=split)
            if tile is not None:
                return nf4_matmul(x, leaf, tile)
        weight, bias = nf4_dequantise(leaf), leaf.bias
        if self._table.invariant or x.dtype == leaf.dtype:  # its tiles are those of 16 bits
            bias = None if bias is None else bias.to(x.dtype)
            return self._whole(x, Dense(weight.to(x.dtype), bias))
        bias = None if bias is None else bias.to(leaf.dtype)
        return linear(x.to(leaf.dtype), weight, bias).to(x.dtype)

    def _beside(self, x: Tensor, leaf: Adapted) -> bool:
        """Whether an adapter's side path runs beside its base's product."""
        base = leaf.base
        plain = isinstance(base, Dense) or (isinstance(base, Nf4) and base.dtype == x.dtype)
        few = len(x) <= SIDE_ROWS and not self._table.invariant
        return few and plain and isinstance(base, Dense | Nf4) and base.bias is None

    def _sides(self, x: Tensor, leaf: Adapted, *, gated: bool = False) -> Tensor:
        """Multiply by a base and by A, side by side: for the kernels that add B."""
        base, rows = leaf.base, len(x)
        if isinstance(base, Nf4):
            packed = self._table.nf4(rows, *leaf.shape, split=True)
            if packed is not None:
                return nf4_lora_matmul(x, base, leaf.a, packed)
            return lora_linear(x, nf4_dequantise(base), leaf.a)
        assert isinstance(base, Dense)
        tile = self._table.matmul(rows, *leaf.shape, split=True)
        if tile is None and gated:
            found = self._table.gated(rows, leaf.rows // 2, leaf.columns)
            tile = None if found is None else gated_tile(found)
        if tile is None:
            return lora_linear(x, base.weight, leaf.a)
        return lora_matmul(x, base.weight, leaf.a, tile)

    def _whole(self, x: Tensor, leaf: Leaf) -> Tensor:
        """Multiply by the leaf itself; where rows must not depend on others, by a fixed tile."""
        if isinstance(leaf, Nf4):
            return self._packed(x, leaf, split=False)
        if isinstance(leaf, Adapted) and isinstance(leaf.base, Nf4):
            return self._whole(x, leaf.base) + linear(linear(x, leaf.a), leaf.b)
        if not self._table.invariant:
            return leaf(x)
        assert isinstance(leaf, Dense), "only plain matrices have a product of fixed order"
        product = filled_matmul(x, leaf.weight, self._fixed(leaf))
        return product if leaf.bias is None else product + leaf.bias

    def _fixed(self, leaf: Dense) -> Tile:
        """Return the one tile of a matrix whose product is written whole."""
        tile = self._table.matmul(0, *leaf.weight.shape, split=False)
        assert tile is not None, "an invariant table has a tile for every shape"
        return tile

    def _members(self, x: Tensor, group: Group) -> tuple[Tensor, ...]:
        """Multiply by each member of a group."""
        if isinstance(group, Separate):
            return tuple(self._whole(x, leaf) for leaf in group.members)
        assert isinstance(group, Packed)
        return tuple(self._whole(x, group.whole).split_with_sizes(group.widths, -1))

    def heads(
        self, x: Tensor, group: Group, head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
    ) -> Tensor:
        """See Ops."""
        if isinstance(group, Packed):
            qkv = self._product(x, group.whole, split=True, widths=group.widths)
        elif isinstance(group, Separate) and len(group.members) == 1:
            qkv = self._product(x, group.members[0], split=True)
        else:
            qkv = torch.cat(self._members(x, group), -1)
        widths = group.widths
        pools, address = kv.paged()
        return rope_write(
            qkv,
            (widths[0] // head_dim, pools[0].shape[1], head_dim),
            norms,
            rope,
            pools if len(widths) > 1 else None,
            address,
            len(widths) == 2,
            x.dtype,
        )

    def add_norm(
        self, residual: Tensor, delta: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return add_norm(residual, delta, weight, eps)

    def post_norm(
        self,
        residual: Tensor,
        delta: Tensor,
        post: Tensor,
        scalar: Tensor | None,
        after: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return post_norm(residual, delta, post, after, scalar, eps)

    def gated(self, x: Tensor, gate_up: Group, activation: str) -> Tensor:
        """See Ops."""
        if activation not in KNOWN:
            gate, up = self._members(x, gate_up)
            return gated(gate, up, activation)
        if not isinstance(gate_up, Packed):
            return act_mul(torch.cat(self._members(x, gate_up), -1), activation)
        whole = gate_up.whole
        if isinstance(whole, Nf4):
            return act_mul(self._packed(x, whole, split=True), activation, dtype=x.dtype)
        if isinstance(whole, Adapted) and len(whole.ranks) == 2 and self._beside(x, whole):
            sides = self._sides(x, whole, gated=True)
            return lora_gated(sides, whole.b, activation, (whole.ranks[0], whole.ranks[1]))
        if isinstance(whole, Dense) and whole.bias is None:
            tile = self._table.gated(x.shape[0], whole.rows // 2, x.shape[1])
            if tile is not None:
                return gated_matmul(x, whole.weight, activation, tile)
        return act_mul(self._whole(x, whole), activation)

    def input_gate(self, x: Tensor, gate: Leaf, extra_TP: Tensor, activation: str) -> Tensor:
        """See Ops."""
        if activation not in KNOWN:
            return gated(self._whole(x, gate), extra_TP, activation)
        few = x.shape[0] <= GATE_ROWS or self._table.invariant
        if few and isinstance(gate, Dense) and gate.bias is None and gate_fits(gate.weight):
            return input_gate(x, gate.weight, extra_TP, activation)
        product = self._product(x, gate, split=True)
        return act_mul(product, activation, extra_TP, dtype=x.dtype)
