"""The fast operations compute an adapter's side path as the plain ones do, fused where they can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.attention.paged import Pages
from flexinfer.kernels.fast import ops as fast
from flexinfer.kernels.fast.ops import SIDE_ROWS, TritonOps
from flexinfer.kernels.fast.table import TileTable
from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Dense, Packed
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.ops import PlainOps
from flexinfer.kernels.rope import rope_tables
from tests.support.triton_interpreter import close, normal

INPUTS, WIDTH = 64, 48
NORMS = HeadNorms(normal(16, seed=5), normal(16, seed=6), v=True, eps=1e-6, late=True)
TUNED: Mapping[str, Any] = {
    "matmul": {f"{n}x{INPUTS}": {"64": [16, 16, 16, 2, 4, 3, 0]} for n in (WIDTH, 96, 144)},
    "gated": {f"{WIDTH}x{INPUTS}": {"64": [16, 16, 32, 1, 4, 3, 0]}},
}


def adapted(ranks: tuple[int, ...], biased: bool = False) -> Adapted:
    """Return a leaf of WIDTH outputs a member, its B block-diagonal."""
    count = WIDTH * len(ranks)
    blocks = [normal(WIDTH, rank, seed=7 + i) * 0.3 for i, rank in enumerate(ranks)]
    bias = normal(count, seed=4) if biased else None
    base = Dense(normal(count, INPUTS, seed=1) * 0.2, bias)
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


CALLS: dict[str, tuple[tuple[int, ...], Callable[[Any, Tensor, Adapted], Tensor]]] = {
    "project": ((5,), lambda ops, x, leaf: ops.project(x, leaf)),
    "linear": ((8,), lambda ops, x, leaf: ops.linear(x, leaf)),
    "heads": ((4, 0, 3), heads),
    "gated": ((4, 6), gated),
}


@pytest.mark.parametrize("rows", [3, SIDE_ROWS + 1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("table", [{}, TUNED], ids=["untuned", "tuned"])
@pytest.mark.parametrize("call", CALLS)
def test_a_side_path(
    call: str, table: Any, biased: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, compute = CALLS[call]
    leaf, x = adapted(ranks, biased), normal(rows, INPUTS)
    fused: list[str] = []
    for name in ("lora_add", "lora_gated"):
        kernel = getattr(fast, name)
        monkeypatch.setattr(fast, name, lambda *a, k=kernel, n=name: fused.append(n) or k(*a))
    close(compute(TritonOps(TileTable(table)), x, leaf), compute(PlainOps(), x, leaf), 1e-4)
    wanted = ["lora_gated" if call == "gated" else "lora_add"]
    assert fused == (wanted if rows <= SIDE_ROWS and not biased else [])
