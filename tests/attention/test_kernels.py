"""Both back ends over pages in no order, shared and partly filled, against the definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.flex import FlexKernels, Shape, _block_mask
from flexinfer.attention.kernel import AttentionKernels
from flexinfer.attention.masks import Tiling, row_mask
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.engine import RECOMPILE
from flexinfer.models.catalog import build_decoder
from tests.support.brute import attend
from tests.support.engines import LIMITS, PAGE, tiny

COLUMNS = LIMITS["max_seq_length"] // PAGE
N_PAGES = LIMITS["max_batch_size"] * COLUMNS + 1
TILE = 32
"""Shapes are those of the engines, so that one compilation serves both."""
POSITIONS = (0, 7, 8, 9, 40, 93)
SPECS = {
    "llama": build_decoder(tiny("llama")).specs[0],
    "sliding": build_decoder(tiny("gemma4")).specs[0],
    "full": build_decoder(tiny("gemma4")).specs[2],
}
BACKENDS = ["dense", pytest.param("flex", marks=pytest.mark.slow)]
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def as_the_engine_compiles() -> Iterator[None]:
    """Allow as many compiled variants as the engine does, without gradients as it does."""
    with torch.no_grad(), torch._dynamo.config.patch(RECOMPILE):
        yield


def kernels(backend: str) -> AttentionKernels:
    """Build a back end as the engine would."""
    if backend == "dense":
        return DenseKernels(PAGE)
    return FlexKernels(PAGE, N_PAGES, False, lambda head_dim: {}, lambda head_dim: {})


@dataclass
class Store:
    """Sequences of 96 tokens in a pool; rows 0 and 1 share their first four pages."""

    spec: LayerSpec
    k: Tensor
    v: Tensor
    table: Tensor
    logical: Tensor

    def sequence(self, row: int) -> tuple[Tensor, Tensor]:
        """Return K and V [G, S, D] of a row in order of positions."""
        pages = self.table[row].long()
        index = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
        return self.k[0, :, index], self.v[0, :, index]


def store_of(spec: LayerSpec) -> Store:
    """Fill a pool at random; pages that no row lists hold NaN, so reading one is seen."""
    generator = torch.Generator().manual_seed(3)
    rows = len(POSITIONS)
    order = torch.randperm(N_PAGES - 1, generator=generator)[: rows * COLUMNS] + 1
    table = order.view(rows, COLUMNS).int()
    table[1, :4] = table[0, :4]
    logical = torch.zeros(N_PAGES, dtype=torch.int32)
    logical[table.long()] = torch.arange(COLUMNS, dtype=torch.int32)
    shape = (1, spec.kv_heads, N_PAGES * PAGE, spec.head_dim)
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    idle = torch.ones(N_PAGES, dtype=torch.bool)
    idle[table.long()] = False
    for pool in (k, v):
        pool[:, :, idle.repeat_interleave(PAGE)] = torch.nan
    return Store(spec, k, v, table, logical)


def queries(spec: LayerSpec, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*shape, spec.heads, spec.head_dim, generator=generator)


@backends
@specs
@pytest.mark.parametrize("rows", [slice(0, 6), slice(1, 2), slice(2, 5)])
def test_rows(spec: LayerSpec, rows: slice, backend: str) -> None:
    held, kernel = store_of(spec), kernels(backend)
    positions = torch.tensor(POSITIONS)[rows]
    mask = kernel.row_mask(held.table[rows], positions, spec.window)
    q = queries(spec, len(positions))
    found = kernel.rows(spec)(q, held.k, held.v, mask)
    for row, position in enumerate(positions.tolist()):
        expected = attend(q[row], *held.sequence(rows.start + row), position, spec)
        torch.testing.assert_close(found[row], expected, atol=2e-5, rtol=2e-5)
        assert found[row].abs().max() > 0.1


@backends
@specs
@pytest.mark.parametrize("starts", [(0, 8, 40, 64), (5,), (33, 1)])
def test_tiles(spec: LayerSpec, starts: tuple[int, ...], backend: str) -> None:
    held, kernel = store_of(spec), kernels(backend)
    positions = torch.tensor(starts)[:, None] + torch.arange(TILE)
    positions[-1, 20:] = -1
    rows = held.table[: len(starts)]
    mask = kernel.tile_mask(rows, positions, held.logical, spec.window)
    q = queries(spec, len(starts), TILE)
    order = torch.arange(q.shape[0] * TILE)
    tiling = Tiling(order.view(-1, TILE), order)
    packed = kernel.tiles(spec)(q.flatten(0, 1), held.k, held.v, tiling, mask)
    found = packed.view(q.shape)
    assert found.isfinite().all()
    for tile, at in enumerate(positions.tolist()):
        for query, position in enumerate(at):
            if position >= 0:
                expected = attend(q[tile, query], *held.sequence(tile), position, spec)
                torch.testing.assert_close(found[tile, query], expected, atol=2e-5, rtol=2e-5)


@backends
@specs
def test_page_lists_are_obeyed(spec: LayerSpec, backend: str) -> None:
    held, kernel = store_of(spec), kernels(backend)
    positions = torch.tensor(POSITIONS)
    q = queries(spec, len(positions))
    right = kernel.row_mask(held.table, positions, spec.window)
    swapped = held.table[:, [1, 0, *range(2, COLUMNS - 2), COLUMNS - 1, COLUMNS - 2]]
    wrong = kernel.row_mask(swapped, positions, spec.window)
    a, b = (kernel.rows(spec)(q, held.k, held.v, mask) for mask in (right, wrong))
    # A full layer at 40 sees both swapped pages whole, so their order does not matter there.
    differs = [(x - y).abs().max() > 1e-3 for x, y in zip(a, b, strict=True)]
    assert differs == [True, True, True, True, False, True]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_layers_of_one_shape_share_a_kernel(spec: LayerSpec) -> None:
    kernel = kernels("flex")
    later = replace(spec, index=9, kv_layer=3)
    assert kernel.rows(spec) is kernel.rows(later)
    assert kernel.tiles(spec) is kernel.tiles(later)
    wider = replace(spec, window=(spec.window or 0) + 1)
    distinct = {id(kernel.rows(s)) for s in (spec, wider, replace(spec, scale=2.0))}
    assert len(distinct) == 3


@specs
def test_the_block_mask_is_that_of_the_cache(spec: LayerSpec) -> None:
    """A mask of another length than the cache makes flex return zeros beyond batch index 0."""
    shape = Shape(
        PAGE, N_PAGES, spec.window, spec.scale, spec.heads, spec.kv_heads, spec.head_dim, False
    )
    held = store_of(spec)
    rows = row_mask(held.table, torch.tensor(POSITIONS), PAGE, spec.window, N_PAGES)
    block_mask = _block_mask(rows, lambda b, h, q, kv: q >= 0, shape, 1, 128)
    assert block_mask.seq_lengths == (1, held.k.shape[2])
    assert block_mask.BLOCK_SIZE == (128, PAGE)
    assert block_mask.shape == (len(POSITIONS), 1, 1, held.k.shape[2])
    assert block_mask.kv_indices.shape == (len(POSITIONS), 1, 1, N_PAGES)
    assert not block_mask.full_kv_num_blocks.any()
