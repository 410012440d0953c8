"""Fixed tiles: a row's bits do not depend on the number of rows; nothing goes elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.attention.paged import Pages
from flexinfer.kernels.fast.nf4.tile import APART, LEFT
from flexinfer.kernels.fast.ops import TritonOps
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.invariant import ROWS, InvariantTable
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Packed
from flexinfer.kernels.nf4 import CODE, Nf4
from flexinfer.kernels.ops import PlainOps
from flexinfer.kernels.rope import rope_tables
from tests.kernels.interpreted.test_ops import INPUTS, OUTPUTS, SHAPE, SPLIT, WHOLE, group_of, leaf
from tests.support.triton_interpreter import close, normal

SMALL: Any = {
    "matmul": {SHAPE: {str(ROWS): SPLIT}},
    "whole": {SHAPE: {str(ROWS): WHOLE}},
    "gated": {SHAPE: {str(ROWS): WHOLE}},
}
OTHER = [16, 16, 16, 1, 4, 3, 0]
"""What a call of few rows would take from a table that it is looked up in by its rows."""
FORMS = {str(rows): [16, 16, 64, 1, 2, 3, form] for rows, form in ((2, APART), (ROWS, LEFT))}
RAGGED: Any = {kind: {SHAPE: {"2": OTHER} | SMALL[kind][SHAPE]} for kind in SMALL} | {
    "nf4": {SHAPE: FORMS}
}
TABLES = {
    "tuned": SMALL,
    "others for few rows": RAGGED,
    "cuBLAS won": {"gated": {SHAPE: {str(ROWS): None}}},
}
X = normal(9, INPUTS)
NORMS = HeadNorms(normal(16, seed=5), normal(16, seed=6), v=True, eps=1e-6, late=True)


def heads(ops: Any, x: Tensor, kind: str) -> Tensor:
    rows = len(x)
    rope = rope_tables(torch.arange(rows) * 7, 0.5 ** torch.arange(8.0), 1.0, torch.float32)
    pages = Pages((torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16, 16)), torch.arange(rows) + 2)
    result: Tensor = ops.heads(x, group_of(kind, 16, 3, False), 16, NORMS, rope, pages)
    return result


def packed(outputs: int) -> Nf4:
    """Draw 4-bit weights."""
    draw = torch.Generator().manual_seed(3)
    bytes_ = torch.randint(256, (outputs, INPUTS // 2), generator=draw).to(torch.uint8)
    absmax = 0.2 + 0.2 * torch.rand(outputs, INPUTS // 64, generator=draw)
    return Nf4(bytes_, absmax, torch.tensor(CODE), torch.float32)


def first(x: Tensor, inputs: int) -> Tensor:
    """Return the first inputs of each row: numbers of them that no tile divides."""
    return x[:, :inputs].contiguous()


CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "project": lambda ops, x: ops.project(x, leaf(OUTPUTS)),
    "linear": lambda ops, x: ops.linear(x, leaf(OUTPUTS, True)),
    "head": lambda ops, x: ops.head(x, leaf(OUTPUTS), 3.0),
    "few inputs": lambda ops, x: ops.project(first(x, 8), leaf(OUTPUTS, inputs=8)),
    "odd inputs": lambda ops, x: ops.linear(first(x, 33), leaf(OUTPUTS, True, 33)),
    "odd head": lambda ops, x: ops.head(first(x, 33), leaf(OUTPUTS, inputs=33), 3.0),
    "4-bit": lambda ops, x: ops.project(x, packed(OUTPUTS)),
    "4-bit gated": lambda ops, x: ops.gated(x, Packed(packed(2 * OUTPUTS), (OUTPUTS,) * 2), "silu"),
    "packed": lambda ops, x: heads(ops, x, "packed"),
    "separate": lambda ops, x: heads(ops, x, "separate"),
    "gated": lambda ops, x: ops.gated(x, group_of("packed", OUTPUTS, 2, False), "silu"),
    "gated apart": lambda ops, x: ops.gated(x, group_of("separate", OUTPUTS, 2, True), "silu"),
    "gate": lambda ops, x: ops.input_gate(x, leaf(16), normal(9, 16, seed=3)[: len(x)], "silu"),
    "wide gate": lambda ops, x: ops.input_gate(x, leaf(9), normal(9, 9, seed=3)[: len(x)], "silu"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("entries", TABLES.values(), ids=TABLES)
def test_rows_alone_and_together(
    entries: Any, call: Callable[[Any, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = TritonOps(InvariantTable(entries, (), tma=False))
    expected = call(PlainOps(), X)
    monkeypatch.setattr(torch.nn.functional, "linear", None)
    whole = call(ops, X)
    close(whole.sum(0) if whole.dim() > expected.dim() else whole, expected)
    for rows in (1, 2, 5):
        part = call(ops, X[:rows])
        assert torch.equal(part, whole[:, :rows] if whole.dim() > expected.dim() else whole[:rows])


def test_the_tile_of_a_shape_is_one() -> None:
    table = InvariantTable(RAGGED, (), tma=True)
    assert table.matmul(1, OUTPUTS, INPUTS, split=True) == Tile(*SPLIT)
    for rows in (1, 64, 65, 10_000):
        assert table.matmul(rows, OUTPUTS, INPUTS, split=True) == table.matmul(
            1, OUTPUTS, INPUTS, split=True
        )
        assert table.matmul(rows, 7, 64, split=False) is not None
        assert table.gated(rows, OUTPUTS, INPUTS) == table.gated(1, OUTPUTS, INPUTS)
        assert table.decode(rows, 4, 128, 8) == table.decode(1, 4, 128, 8)
    assert not TileTable.invariant
