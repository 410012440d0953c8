"""Tuning on CUDA: what it finds is sound, right and no slower; what fails is skipped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")

from flexinfer.engine.shapes import shapes_of
from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.gemm import gated_matmul, matmul
from flexinfer.kernels.fast.nf4.matmul import nf4_matmul
from flexinfer.kernels.fast.nf4.tile import Nf4Tile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import well_formed
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.fast.tuning.race import Trial
from flexinfer.kernels.fast.tuning.trials import CudaTimer, close_to
from flexinfer.kernels.fast.tuning.tune import Shapes, Tuned, tune
from flexinfer.kernels.nf4 import CODE, Nf4
from flexinfer.models.catalog import build_decoder
from tests.support.cuda import LIMITS, wide_on_cuda
from tests.support.engines import request
from tests.support.packed import pack_projections

pytestmark = pytest.mark.gpu
OUTPUTS, INPUTS = 512, 1024
SHAPES = Shapes(
    products=((OUTPUTS, INPUTS),), gated=((256, INPUTS),), decode=((4, 64, 2),),
    prefill=((64, 8, 2, 100),),
)  # fmt: skip
HUGE = Tile(64, 128, 128, 1, 4, 8, 1)
"""More shared memory than any device has."""


@pytest.fixture
def timer() -> Iterator[CudaTimer]:
    with closing(CudaTimer(torch.device("cuda"), torch.bfloat16)) as timer:
        yield timer


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16().cuda()


def leaf_of(dtype: torch.dtype) -> Nf4:
    draw = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (OUTPUTS, INPUTS // 2), generator=draw).to(torch.uint8).cuda()
    absmax = torch.rand(OUTPUTS, INPUTS // 64, generator=draw).cuda() / 16
    return Nf4(packed, absmax, torch.tensor(CODE).cuda(), dtype)


def test_tuned_tiles_compute_what_torch_does(timer: CudaTimer) -> None:
    with torch.no_grad():
        tuned: Tuned = tune(SHAPES, timer.processor, timer)
    assert well_formed(tuned.entries)
    assert tuned.trials > 60
    assert tuned.failed < tuned.trials / 2
    assert tuned.entries.keys() == {"matmul", "whole", "gated", "decode", "prefill"}
    w, gate_up = normal(OUTPUTS, INPUTS) / 32, normal(512, INPUTS) / 32
    own = 0
    for kind in ("matmul", "whole", "gated"):
        for rows, tile in next(iter(tuned.entries[kind].values())).items():
            if tile is None:
                continue
            own += 1
            x = normal(int(rows), INPUTS)
            if kind == "gated":
                found = gated_matmul(x, gate_up, "silu", Tile(*tile))
                gate, up = F.linear(x, gate_up).chunk(2, -1)
                expected = F.silu(gate) * up
            else:
                found, expected = matmul(x, w, Tile(*tile)), F.linear(x, w)
            found = found.sum(0) if found.dim() == 3 else found
            torch.testing.assert_close(found.float(), expected.float(), atol=0.03, rtol=0.03)
    assert own, "cuBLAS is not the fastest everywhere"


def test_tuned_tiles_multiply_4_bit_weights_as_torch_does(timer: CudaTimer) -> None:
    with torch.no_grad():
        tuned = tune(Shapes(nf4=((OUTPUTS, INPUTS),)), timer.processor, timer)
    assert well_formed(tuned.entries)
    assert tuned.entries.keys() == {"nf4", "nf4-whole"}
    assert tuned.failed < tuned.trials / 2
    leaf = leaf_of(torch.bfloat16)
    own = 0
    for kind, found in tuned.entries.items():
        for rows, tile in next(iter(found.values())).items():
            if tile is None:
                continue
            own += 1
            x = normal(int(rows), INPUTS)
            product = nf4_matmul(x, leaf, Nf4Tile(*tile))
            assert close_to(product, leaf(x)), (kind, rows, tile)
    assert own, "cuBLAS is not the fastest everywhere"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_no_tile_that_is_tried_changes_a_4_bit_weight(rows: int, dtype: torch.dtype) -> None:
    """One input a row is 1, so the product is one weight: the bits of the reference, not near."""
    leaf = leaf_of(dtype)
    x = torch.eye(INPUTS, dtype=dtype, device="cuda")[:: INPUTS // rows].contiguous()
    expected = leaf.weight().T[:: INPUTS // rows]
    for family in candidates.nf4(OUTPUTS, INPUTS, rows, 132):
        for tile in family.tiles:
            found = nf4_matmul(x, leaf, tile)
            whole = found if tile.split == 1 else found.sum(0).to(dtype)
            assert torch.equal(whole, expected), tile


def test_a_tile_that_does_not_fit_is_none_and_harms_nothing(timer: CudaTimer) -> None:
    trial = partial(Trial, "products", (OUTPUTS, INPUTS), 64)
    with torch.no_grad():
        assert timer(trial(HUGE)) is None
        cublas = timer(trial(None))
    assert cublas is not None
    assert 0.5 < cublas < 500.0


def test_a_tile_that_computes_something_else_is_none(timer: CudaTimer) -> None:
    def wrong(x: Tensor, w: Tensor, tile: Tile) -> Tensor:
        return F.linear(x, w) * 1.1

    trial = Trial("products", (OUTPUTS, INPUTS), 16, Tile(16, 64, 128, 1, 4, 4, 0))
    with torch.no_grad(), patch("flexinfer.kernels.fast.tuning.benches.matmul", wrong):
        assert timer(trial) is None


def test_time_grows_with_what_is_read(timer: CudaTimer) -> None:
    with torch.no_grad():
        few = timer(Trial("products", (1024, 4096), 16, None))
        many = timer(Trial("products", (16_384, 4096), 16, None))
    assert few is not None
    assert many is not None
    assert many > 2 * few


def test_more_shares_help_one_sequence(timer: CudaTimer) -> None:
    with torch.no_grad():
        alone = timer(Trial("decode", (4, 128, 1), 1, DecodeTile(32, 1, 2, 3)))
        shared = timer(Trial("decode", (4, 128, 1), 1, DecodeTile(32, 8, 2, 3)))
    assert alone is not None
    assert shared is not None
    assert shared < alone


def test_memory_is_given_back() -> None:
    """But for the workspace that cuBLAS keeps, which the first round leaves."""
    reserved: list[int] = []
    for _ in range(2):
        with torch.no_grad(), closing(CudaTimer(torch.device("cuda"), torch.bfloat16)) as timer:
            timer(Trial("products", (16_384, 4096), 16, None))
            at_work = torch.cuda.memory_reserved()
        del timer
        gc.collect()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert at_work > reserved[0] + 2**27
    assert reserved[1] <= reserved[0]


class Spy(TileTable):
    """A table that keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: dict[str, set[tuple[int, ...]]] = {
            "products": set(), "gated": set(), "decode": set(), "prefill": set(),
        }  # fmt: skip

    def matmul(self, rows: int, outputs: int, inputs: int, *, split: bool) -> Tile | None:
        self.asked["products"].add((outputs, inputs))
        return super().matmul(rows, outputs, inputs, split=split)

    def gated(self, rows: int, outputs: int, inputs: int) -> Tile | None:
        self.asked["gated"].add((outputs, inputs))
        return super().gated(rows, outputs, inputs)

    def decode(self, rows: int, group: int, head_dim: int, kv_heads: int) -> DecodeTile:
        self.asked["decode"].add((group, head_dim, kv_heads))
        return super().decode(rows, group, head_dim, kv_heads)

    def prefill(self, head_dim: int) -> Any:
        self.asked["prefill"].add((head_dim,))
        return super().prefill(head_dim)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma4"])
def test_what_is_tuned_is_what_an_engine_looks_up(
    family: str, packed: bool, open_engine: Any
) -> None:
    module, spy = deepcopy(wide_on_cuda(family)), Spy()
    if packed:
        pack_projections(module)
    found = shapes_of(build_decoder(module), torch.device("cuda"))
    with patch.object(TileTable, "of_device", lambda name: spy):
        engine = open_engine(module, **dict(LIMITS) | {"attention": "triton"})
        engine.generate([request((5, 6, 7), max_new_tokens=4)])
    assert spy.asked["products"] == set(found.products)
    assert spy.asked["gated"] == set(found.gated)
    assert bool(found.gated) == packed
    assert spy.asked["decode"] == set(found.decode)
    assert spy.asked["prefill"] == {(head_dim,) for head_dim, *_ in found.prefill}
