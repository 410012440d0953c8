"""The fast operations compute an adapter's side path as the plain ones do, fused where they can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.attention.paged import Pages
from flexinfer.kernels.fast import ops as fast
from flexinfer.kernels.fast.ops import SIDE_ROWS, TritonOps
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Dense, Packed
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import CODE, Nf4
from flexinfer.kernels.ops import PlainOps
from flexinfer.kernels.rope import rope_tables
from tests.support.triton_interpreter import close, normal

INPUTS, WIDTH = 64, 48
NORMS = HeadNorms(normal(16, seed=5), normal(16, seed=6), v=True, eps=1e-6, late=True)
TUNED: Mapping[str, Any] = {
    "matmul": {f"{n}x{INPUTS}": {"64": [16, 16, 16, 2, 4, 3, 0]} for n in (WIDTH, 96, 144)},
    "nf4": {f"{n}x{INPUTS}": {"64": [16, 16, 64, 1, 4, 3, 1]} for n in (WIDTH, 96, 144)},
    "gated": {f"{WIDTH}x{INPUTS}": {"64": [16, 16, 32, 1, 4, 3, 0]}},
}


def packed(outputs: int, bias: Tensor | None) -> Nf4:
    """Draw 4-bit weights."""
    draw = torch.Generator().manual_seed(3)
    bytes_ = torch.randint(256, (outputs, INPUTS // 2), generator=draw).to(torch.uint8)
    absmax = 0.2 + 0.2 * torch.rand(outputs, INPUTS // 64, generator=draw)
    return Nf4(bytes_, absmax, torch.tensor(CODE), torch.float32, bias)


def adapted(ranks: tuple[int, ...], biased: bool = False, four_bit: bool = False) -> Adapted:
    """Return a leaf of WIDTH outputs a member, its B block-diagonal."""
    count = WIDTH * len(ranks)
    blocks = [normal(WIDTH, rank, seed=7 + i) * 0.3 for i, rank in enumerate(ranks)]
    bias = normal(count, seed=4) if biased else None
    plain = Dense(normal(count, INPUTS, seed=1) * 0.2, bias)
    base = packed(count, bias) if four_bit else plain
    return Adapted(base, normal(sum(ranks), INPUTS, seed=2) * 0.2, torch.block_diag(*blocks), ranks)


def heads(ops: Any, x: Tensor, leaf: Adapted) -> Tensor:
    rope = rope_tables(torch.arange(len(x)) * 7, 0.5 ** torch.arange(8.0), 1.0, torch.float32)
    pools = torch.zeros(1, 3, 99, 16), torch.zeros(1, 3, 99, 16)
    group = Packed(leaf, (WIDTH,) * 3)
    pages = Pages(pools, torch.arange(len(x)) + 2)
    queries: Tensor = ops.heads(x, group, 16, NORMS, rope, pages)
    return torch.cat((queries.flatten(), *(pool.flatten() for pool in pools)))


def gated(ops: Any, x: Tensor, leaf: Adapted) -> Tensor:
    result: Tensor = ops.gated(x, Packed(leaf, (WIDTH,) * 2), "silu")
    return result


def input_gate(ops: Any, x: Tensor, leaf: Adapted) -> Tensor:
    extra = normal(len(x), 3, WIDTH, seed=6)[:, 1]
    result: Tensor = ops.input_gate(x, leaf, extra, "gelu_pytorch_tanh")
    return result


CALLS: dict[str, tuple[tuple[int, ...], Callable[[Any, Tensor, Adapted], Tensor]]] = {
    "project": ((5,), lambda ops, x, leaf: ops.project(x, leaf)),
    "linear": ((8,), lambda ops, x, leaf: ops.linear(x, leaf)),
    "heads": ((4, 0, 3), heads),
    "gated": ((4, 6), gated),
    "input gate": ((5,), input_gate),
}


TABLES: dict[str, Mapping[str, Any]] = {"untuned": {}, "tuned": TUNED}
MANY = SIDE_ROWS + 1
"""Here no table has a tile, and the product is whole, whoever reads it."""
CASES = [
    (call, table, four_bit, biased, rows)
    for call, table, four_bit, biased, rows in product(
        CALLS, TABLES, (False, True), (False, True), (3, MANY)
    )
    if call != "heads" or rows < MANY or (table == "tuned" and not biased)
]
"""Heads of many rows take seconds to interpret: the others say what tables and biases do there."""


@pytest.mark.parametrize(("call", "table", "four_bit", "biased", "rows"), CASES)
def test_a_side_path(
    call: str, table: str, four_bit: bool, biased: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, compute = CALLS[call]
    leaf, x = adapted(ranks, biased, four_bit), normal(rows, INPUTS)
    fused: list[str] = []
    for name in ("lora_add", "lora_gated"):
        kernel = getattr(fast, name)
        monkeypatch.setattr(fast, name, lambda *a, k=kernel, n=name: fused.append(n) or k(*a))
    close(compute(TritonOps(TileTable(TABLES[table])), x, leaf), compute(PlainOps(), x, leaf), 1e-4)
    wanted = ["lora_gated" if call == "gated" else "lora_add"]
    assert fused == (wanted if rows <= SIDE_ROWS and not biased else [])


@pytest.mark.parametrize("call", ["project", "gated"])
def test_beside_4_bit_weights_that_cublas_multiplies_faster(call: str) -> None:
    """They are dequantised, and their product lies beside that of the ranks all the same."""
    table = {"nf4": {f"{n}x{INPUTS}": {"64": None} for n in (WIDTH, 96)}}
    ranks, compute = CALLS[call]
    leaf, x = adapted(ranks, four_bit=True), normal(3, INPUTS)
    close(compute(TritonOps(TileTable(table)), x, leaf), compute(PlainOps(), x, leaf), 1e-4)
