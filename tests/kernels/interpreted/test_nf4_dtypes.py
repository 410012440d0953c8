"""4-bit weights of a compute dtype of their own are multiplied in it, as bitsandbytes does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexinfer.kernels.fast import ops as fast
from flexinfer.kernels.fast.nf4.matmul import nf4_matmul
from flexinfer.kernels.fast.nf4.tile import Nf4Tile
from flexinfer.kernels.fast.ops import TritonOps
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.linear import Packed
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import CODE, Nf4
from flexinfer.kernels.ops import PlainOps
from tests.support.triton_interpreter import normal, same

INPUTS, OUTPUTS = 128, 64
CALLS: dict[str, Callable[[TritonOps | PlainOps, Tensor, Nf4], Tensor]] = {
    "project": lambda ops, x, leaf: ops.project(x, leaf),
    "linear": lambda ops, x, leaf: ops.linear(x, leaf),
    "gated": lambda ops, x, leaf: ops.gated(x, Packed(leaf, (OUTPUTS // 2,) * 2), "silu"),
    "gate": lambda ops, x, leaf: ops.input_gate(
        x, leaf, normal(len(x), OUTPUTS, seed=5).to(x.dtype), "silu"
    ),
    "adapted": lambda ops, x, leaf: ops.linear(
        x, Adapted(leaf, normal(4, INPUTS, seed=2).to(x.dtype), normal(OUTPUTS, 4).to(x.dtype))
    ),
}


def leaf(dtype: torch.dtype, biased: bool) -> Nf4:
    """Draw 4-bit weights that are multiplied in a dtype."""
    draw = torch.Generator().manual_seed(3)
    packed = torch.randint(256, (OUTPUTS, INPUTS // 2), generator=draw).to(torch.uint8)
    absmax = 0.05 + 0.05 * torch.rand(OUTPUTS, INPUTS // 64, generator=draw)
    bias = normal(OUTPUTS, seed=4) if biased else None
    return Nf4(packed, absmax, torch.tensor(CODE), dtype, bias)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("own", "given"),
    [
        (torch.float32, torch.float16), (torch.float16, torch.float32),
        (torch.float16, torch.float16),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("call", CALLS)
def test_they_are_multiplied_in_their_own_dtype(
    call: str, rows: int, own: torch.dtype, given: torch.dtype, biased: bool
) -> None:
    x, weights = normal(rows, INPUTS).to(given), leaf(own, biased)
    found = CALLS[call](TritonOps(TileTable({})), x, weights)
    if own == given:  # the order of sums is the kernels' own
        whole = found.sum(0).to(given) if found.dim() == 3 else found
        torch.testing.assert_close(whole, CALLS[call](PlainOps(), x, weights), atol=1e-2, rtol=1e-2)
        assert found.dtype == (torch.float32 if found.dim() == 3 else given)
    else:
        same(found, CALLS[call](PlainOps(), x, weights))


@pytest.mark.parametrize("call", ["project", "gated", "gate"])
def test_what_reads_them_adds_partial_sums(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So K is split where that makes more blocks, and not where nobody would add."""
    splits: list[int] = []

    def spied(x: Tensor, leaf: Nf4, tile: Nf4Tile) -> Tensor:
        splits.append(tile.split)
        return nf4_matmul(x, leaf, tile)

    monkeypatch.setattr(fast, "nf4_matmul", spied)
    x, weights = normal(3, INPUTS), leaf(torch.float32, biased=False)
    CALLS[call](TritonOps(TileTable({})), x, weights)
    CALLS["linear"](TritonOps(TileTable({})), x, weights)
    assert splits[0] > 1
    assert splits[1] == 1
