"""Filling the hole of a step: keys land where the table says, and borrowers write nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from flexinfer.attention.cache import PagedKVCache
from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.masks import Tiling
from flexinfer.attention.paged import (
    RowStep,
    TileStep,
    addresses,
    prefill_masks,
    row_inputs,
    store,
)
from flexinfer.attention.spec import LayerAttend, LayerSpec
from tests.support.brute import attend

PAGE, N_PAGES = 8, 12
FULL = LayerSpec(index=0, heads=4, kv_heads=2, head_dim=16, scale=0.3, window=None, kv_layer=0)
SLIDING = replace(FULL, index=1, kv_layer=1, window=8)
BORROWER = replace(SLIDING, index=2)
SPECS = (FULL, SLIDING, BORROWER)
WINDOWS = (None, 8)
TABLE = torch.tensor([[5, 2, 9], [7, 11, 3]], dtype=torch.int32)
LOGICAL = torch.zeros(N_PAGES, dtype=torch.int32)
LOGICAL[TABLE.long()] = torch.arange(3, dtype=torch.int32)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def new_cache() -> PagedKVCache:
    return PagedKVCache(SPECS, N_PAGES, PAGE, torch.float32, torch.device("cpu"))


def prefill(cache: PagedKVCache, lengths: tuple[int, int], tile: int = 8) -> TileStep:
    """Return the step that computes positions [0, length) of both rows."""
    positions = torch.cat([torch.arange(n) for n in lengths])
    owner = torch.tensor([0] * lengths[0] + [1] * lengths[1])
    starts = (0, lengths[0])
    source, at, slots, place = [], [], [], torch.zeros(sum(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        for begin in range(0, length, tile):
            inside = range(begin, min(begin + tile, length))
            place[starts[row] + begin : starts[row] + begin + len(inside)] = torch.arange(
                len(source) * tile, len(source) * tile + len(inside)
            )
            filled = [starts[row] + i for i in inside]
            source.append(filled + [filled[-1]] * (tile - len(inside)))
            at.append([*inside] + [-1] * (tile - len(inside)))
            slots.append(row)
    masks = prefill_masks(TABLE[slots], torch.tensor(at), LOGICAL, WINDOWS, DenseKernels(PAGE))
    address = addresses(TABLE[owner], positions, PAGE)
    last = torch.tensor([n - 1 for n in lengths])
    kernels = DenseKernels(PAGE)
    kept = RowStep(cache, kernels, row_inputs(TABLE, last, PAGE, WINDOWS, kernels), WINDOWS)
    return TileStep(cache, kernels, address, Tiling(torch.tensor(source), place), masks, kept)


def run(hole: LayerAttend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Store, then attend."""
    hole.store(k, v)
    return hole(q)


def test_addresses() -> None:
    positions = torch.tensor([0, 9, 23, 7])
    found = addresses(TABLE[[0, 0, 1, 1]], positions, PAGE)
    assert found.tolist() == [5 * 8, 2 * 8 + 1, 3 * 8 + 7, 7 * 8 + 7]
    assert found.dtype == torch.int64


def test_store_writes_those_positions_only() -> None:
    pool, values = torch.zeros(1, 2, N_PAGES * PAGE, 16), randn(3, 2, 16, seed=1)
    store(pool, values, torch.tensor([40, 17, 31]))
    assert torch.equal(pool[0, :, [40, 17, 31]], values.transpose(0, 1))
    pool[:, :, [40, 17, 31]] = 0
    assert not pool.any()


def test_prefill_then_decode_is_attention_over_everything() -> None:
    for spec in (FULL, SLIDING):
        cache, lengths = new_cache(), (11, 5)
        k, v = (randn(18, 2, 16, seed=s) for s in (2, 3))
        q = randn(18, 4, 16, seed=4)
        out = run(prefill(cache, lengths)(spec), q[:16], k[:16], v[:16])
        kernels = DenseKernels(PAGE)
        rows = row_inputs(TABLE, torch.tensor(lengths), PAGE, WINDOWS, kernels)
        last = run(RowStep(cache, kernels, rows, WINDOWS)(spec), q[16:], k[16:], v[16:])
        for row, (start, length) in enumerate(((0, 11), (11, 5))):
            index = [*range(start, start + length), 16 + row]
            keys, values = k[index].transpose(0, 1), v[index].transpose(0, 1)
            found = torch.cat((out[start : start + length], last[row : row + 1]))
            for position, at in enumerate(index):
                expected = attend(q[at], keys, values, position, spec)
                torch.testing.assert_close(found[position], expected, atol=1e-5, rtol=1e-5)


def test_a_borrowing_layer_reads_and_never_writes() -> None:
    cache, lengths = new_cache(), (11, 5)
    k, v, q = randn(16, 2, 16, seed=2), randn(16, 2, 16, seed=3), randn(16, 4, 16, seed=4)
    step = prefill(cache, lengths)
    own = run(step(SLIDING), q, k, v)
    before = [pool.clone() for spec in (FULL, SLIDING) for pool in cache.layer(spec)]
    assert torch.equal(step(BORROWER)(q), own)
    narrowed = step.kept()
    rows = narrowed(BORROWER)(q[[10, 15]])
    torch.testing.assert_close(rows, own[[10, 15]], atol=1e-6, rtol=1e-6)
    assert narrowed.kept() is narrowed
    after = [pool for spec in (FULL, SLIDING) for pool in cache.layer(spec)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert before[2].any()


def test_padding_of_tiles_touches_nothing() -> None:
    cache = new_cache()
    k, v, q = randn(16, 2, 16, seed=2), randn(16, 2, 16, seed=3), randn(16, 4, 16, seed=4)
    run(prefill(cache, (11, 5))(FULL), q, k, v)
    written = cache.layer(FULL)[0].abs().sum((0, 1, 3)) > 0
    expected = set(addresses(TABLE[[0] * 11 + [1] * 5], torch.tensor([*range(11), *range(5)]), 8))
    assert set(written.nonzero()[:, 0].tolist()) == {int(a) for a in expected}
