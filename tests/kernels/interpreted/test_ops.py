"""The fast operations take every leaf, group, activation and size that the plain ones take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from flexinfer.attention.paged import Pages
from flexinfer.kernels.fast.ops import GATE_ROWS, TritonOps
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Dense, Group, Packed, Separate
from flexinfer.kernels.mlp import ACTIVATIONS
from flexinfer.kernels.ops import PlainOps
from flexinfer.kernels.rope import rope_tables
from tests.support.triton_engine import SmallTiles
from tests.support.triton_interpreter import close, normal

PLAIN = PlainOps()
ROWS, INPUTS, OUTPUTS = 3, 64, 48
SPLIT, WHOLE = [16, 16, 16, 2, 4, 3, 0], [16, 16, 32, 1, 4, 3, 0]
SHAPE = f"{OUTPUTS}x{INPUTS}"
TUNED: Mapping[str, Any] = {
    "matmul": {SHAPE: {"8": SPLIT}},
    "whole": {SHAPE: {"8": WHOLE}},
    "gated": {SHAPE: {"8": WHOLE}},
}
ANGLES = torch.arange(ROWS) * 7, 0.5 ** torch.arange(8.0)
tables = pytest.mark.parametrize("table", [{}, TUNED], ids=["untuned", "tuned"])
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
biases = pytest.mark.parametrize("biased", [False, True])


def leaf(outputs: int, biased: bool = False, inputs: int = INPUTS, seed: int = 1) -> Dense:
    weight = normal(outputs, inputs, seed=seed) * 0.2
    return Dense(weight, normal(outputs, seed=seed + 50) if biased else None)


def group_of(kind: str, outputs: int, members: int, biased: bool) -> Group:
    """Return a group of equal members, packed or apart."""
    if kind == "packed":
        return Packed(leaf(outputs * members, biased), (outputs,) * members)
    return Separate(tuple(leaf(outputs, biased, seed=seed + 1) for seed in range(members)))


@tables
@biases
def test_products(biased: bool, table: Mapping[str, Any]) -> None:
    ops, x, one = TritonOps(TileTable(table)), normal(ROWS, INPUTS), leaf(OUTPUTS, biased)
    expected = PLAIN.linear(x, one)
    close(ops.linear(x, one), expected)
    projected = ops.project(x, one)
    split = bool(table) and not biased
    assert projected.shape == ((2, ROWS, OUTPUTS) if split else (ROWS, OUTPUTS))
    close(projected.sum(0) if split else projected, expected)
    for cap in (None, 3.0):
        close(ops.head(x, one, cap), PLAIN.head(x, one, cap))


@tables
def test_more_rows_than_were_measured(table: Mapping[str, Any]) -> None:
    ops, x, one = TritonOps(TileTable(table)), normal(9, INPUTS), leaf(OUTPUTS)
    assert torch.equal(ops.project(x, one), one(x))


@pytest.mark.parametrize("split", [1, 2])
@biases
@pytest.mark.parametrize("kind", ["packed", "separate"])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_heads(members: int, kind: str, biased: bool, split: int) -> None:
    """Queries alone (another layer's KV is read), without values (keys are raw values too), all."""
    group, rope = group_of(kind, 32, members, biased), rope_tables(*ANGLES, 1.0, torch.float32)
    norms = HeadNorms(normal(16, seed=5), normal(16, seed=6), v=True, eps=1e-6, late=True)
    found, expected = (
        Pages((torch.zeros(1, 2, 9, 16), torch.zeros(1, 2, 9, 16)), torch.arange(ROWS) + 2)
        for _ in range(2)
    )
    given = (normal(ROWS, INPUTS), group, 16, norms, rope)
    close(TritonOps(SmallTiles(split)).heads(*given, found), PLAIN.heads(*given, expected))
    close(found.k, expected.k)
    close(found.v, expected.v)


@tables
@activations
@biases
@pytest.mark.parametrize("kind", ["packed", "separate"])
def test_gated(kind: str, biased: bool, activation: str, table: Mapping[str, Any]) -> None:
    ops, x = TritonOps(TileTable(table)), normal(ROWS, INPUTS)
    gate_up = group_of(kind, OUTPUTS, 2, biased)
    close(ops.gated(x, gate_up, activation), PLAIN.gated(x, gate_up, activation))


@activations
@biases
@pytest.mark.parametrize("size", [(16, 64), (8, 64), (16, 48), (24, 256)])
def test_input_gate(size: tuple[int, int], biased: bool, activation: str) -> None:
    check_gate(3, size, biased, activation)


def test_input_gate_of_many_rows() -> None:
    check_gate(GATE_ROWS + 1, (16, 64), False, "gelu_pytorch_tanh")


def check_gate(rows: int, size: tuple[int, int], biased: bool, activation: str) -> None:
    """Fail unless both forms agree."""
    outputs, inputs = size
    ops, x, gate = TritonOps(TileTable({})), normal(rows, inputs), leaf(outputs, biased, inputs)
    extra = normal(rows, outputs, seed=3)
    close(ops.input_gate(x, gate, extra, activation), PLAIN.input_gate(x, gate, extra, activation))
