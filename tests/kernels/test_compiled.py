"""The compiled operations compute what the plain ones do, one graph for any number of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.kernels.compiled import CompiledOps
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Dense
from flexinfer.kernels.ops import Ops, PlainOps
from flexinfer.kernels.rope import Rope
from flexinfer.models.layers import group
from tests.support.torch_compile import fresh_dynamo

HIDDEN, DIM = 16, 8


@dataclass
class Kept:
    """A layer's pools; keys and values of the step go to `address`."""

    k: Tensor
    v: Tensor
    address: Tensor

    def store(self, k_TGD: Tensor, v_TGD: Tensor) -> None:
        self.k[0, :, self.address] = k_TGD.transpose(0, 1)
        self.v[0, :, self.address] = v_TGD.transpose(0, 1)

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (self.k, self.v), self.address


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def heads(ops: Ops, rows: int) -> tuple[Tensor, ...]:
    kv = Kept(torch.zeros(1, 1, 32, DIM), torch.zeros(1, 1, 32, DIM), torch.arange(rows) + 3)
    members = [Dense(drawn(n * DIM, HIDDEN), None) for n in (2, 1, 1)]
    norms = HeadNorms(drawn(DIM), drawn(DIM), v=False, eps=1e-6, late=False)
    rope = Rope(drawn(rows, DIM), drawn(rows, DIM))
    return ops.heads(drawn(rows, HIDDEN), group(*members), DIM, norms, rope, kv), kv.k, kv.v


def norms(ops: Ops, rows: int) -> tuple[Tensor, ...]:
    x, delta, weight = drawn(rows, HIDDEN), drawn(rows, HIDDEN + 0) * 2, drawn(HIDDEN)
    sums = ops.add_norm(x, delta, weight, 1e-6)
    return *sums, *ops.post_norm(x, delta, weight, torch.tensor(0.5), weight, 1e-6)


def gates(ops: Ops, rows: int) -> tuple[Tensor, ...]:
    x, one = drawn(rows, HIDDEN), Dense(drawn(HIDDEN, HIDDEN), None)
    both = group(one, Dense(drawn(HIDDEN, HIDDEN) * 2, None))
    return ops.gated(x, both, "silu"), ops.input_gate(x, one, x * 3, "gelu_pytorch_tanh")


@pytest.mark.parametrize(("work", "operations"), [(heads, 1), (norms, 2), (gates, 2)])
def test_one_graph_an_operation_for_any_number_of_rows(
    work: Callable[[Ops, int], tuple[Tensor, ...]], operations: int
) -> None:
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    with fresh_dynamo(), torch.no_grad():
        compiled = CompiledOps(functools.partial(torch.compile, backend=backend))
        for rows in (3, 5, 9, 4):
            for got, wanted in zip(work(compiled, rows), work(PlainOps(), rows), strict=True):
                torch.testing.assert_close(got, wanted)
    assert len(graphs) == operations
