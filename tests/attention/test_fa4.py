"""Prefill by FA4's arguments: pages in no order, shared prefixes, windows, GQA; and planted faults.

FA4 itself is a stand-in in plain torch that follows its documented rules to the letter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.fa4 import MANY, Fa4Kernels, paged
from flexinfer.attention.fa4_trial import ERROR_LIMIT, LATER, trial
from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import LayerSpec
from tests.attention.test_kernels import PAGE, SPECS, TILE, queries, store_of
from tests.support.brute import attend
from tests.support.fa4 import flash_attn_varlen_func as stand_in

SHAPES = SPECS | {
    "three to one": replace(SPECS["llama"], heads=6, kv_heads=2),
    "one kv head": replace(SPECS["llama"], heads=4, kv_heads=1, window=11),
}
specs = pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
CPU = torch.device("cpu")


def prefill(spec: LayerSpec, starts: tuple[int, ...], length: int, varlen: Any) -> float:
    """Return the largest error of chunks of 32 tokens, the last one cut to `length`."""
    held, kernels = store_of(spec), Fa4Kernels(DenseKernels(PAGE), varlen, PAGE)
    positions = torch.tensor(starts)[:, None] + torch.arange(TILE)
    positions[-1, length:] = -1
    tokens = (len(starts) - 1) * TILE + length
    q = queries(spec, tokens)
    order = torch.arange(len(starts) * TILE)
    tiling = Tiling(order.clamp(max=tokens - 1).view(-1, TILE), order[:tokens])
    mask = kernels.tile_mask(held.table[: len(starts)], positions, held.logical, spec.window)
    found = kernels.tiles(spec)(q, held.k, held.v, tiling, mask)
    worst = 0.0
    for token, position in enumerate(positions.flatten()[:tokens].tolist()):
        row = token // TILE
        expected = attend(q[token], *held.sequence(row), position, spec)
        error = (found[token] - expected).abs().max()
        worst = max(worst, float(error.nan_to_num(nan=torch.inf)))
    return worst


@specs
@pytest.mark.parametrize("length", [1, 20, 32])
@pytest.mark.parametrize("starts", [(0,), (0, 8, 40, 64), (33, 1), (7, 0, 32)])
def test_chunks_over_pages(spec: LayerSpec, starts: tuple[int, ...], length: int) -> None:
    assert prefill(spec, starts, length, stand_in) < 2e-5


def changed(**change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the stand-in called with arguments that are changed first."""

    def wrong(*tensors: Tensor, **given: Any) -> Any:
        return stand_in(*tensors, **given | {name: f(given[name]) for name, f in change.items()})

    return wrong


FAULTS = {
    "keys": changed(seqused_k=lambda seen: seen + 1),
    "scale": changed(softmax_scale=lambda scale: scale * 1.1),
    "order": changed(page_table=lambda pages: pages.flip(1).contiguous()),
    "rows": changed(page_table=lambda pages: pages.flip(0).contiguous()),
    "not causal": changed(causal=lambda causal: False, window_size=lambda w: (w[0], None)),
    "boundaries": changed(
        cu_seqlens_q=lambda starts: torch.cat((starts[:1], starts[1:-1] - 1, starts[-1:]))
    ),
    "kv heads": lambda q, k, v, **given: stand_in(q, k.flip(2), v.flip(2), **given),
    "groups": lambda q, k, v, **given: (stand_in(q.flip(1), k, v, **given)[0], None),
}
"""What a wrong argument or a wrong kernel would do."""


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_seen(fault: Callable[..., Any]) -> None:
    assert prefill(SHAPES["llama"], (8, 40, 33), 20, fault) > 1e-3


@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_off_by_one_is_seen(off: int) -> None:
    wrong = changed(window_size=lambda window: (window[0] + off, window[1]))
    assert prefill(SHAPES["sliding"], (8, 40, 33), 20, wrong) > 1e-3


@specs
@pytest.mark.parametrize("page", [8, 32, 128])
def test_the_trial_passes_what_is_right(spec: LayerSpec, page: int) -> None:
    assert trial(stand_in, spec, page, torch.bfloat16, CPU) < ERROR_LIMIT
    assert trial(stand_in, spec, page, torch.bfloat16, CPU, MANY) < ERROR_LIMIT


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_trial_sees_a_fault(fault: Callable[..., Any]) -> None:
    assert trial(fault, SHAPES["llama"], 32, torch.bfloat16, CPU) > ERROR_LIMIT


@pytest.mark.parametrize("window", [1, 8, 160, 512, 4096])
@pytest.mark.parametrize("fault", ["wide", "narrow", "none"])
def test_the_trial_sees_a_wrong_window(window: int, fault: str) -> None:
    spec = replace(SPECS["llama"], window=window)
    off = {"wide": lambda w: (w[0] + 1, w[1]), "narrow": lambda w: (w[0] - 1, w[1])}
    wrong = changed(window_size=off.get(fault, lambda w: (None, None)))
    assert trial(stand_in, spec, 32, torch.bfloat16, CPU) < ERROR_LIMIT
    assert trial(wrong, spec, 32, torch.bfloat16, CPU) > 4 * ERROR_LIMIT


def test_the_trial_joins_the_tiles_of_a_chunk() -> None:
    asked: list[Any] = []

    def watched(*tensors: Tensor, **given: Any) -> Any:
        asked.append(given["cu_seqlens_q"].diff().tolist())
        return stand_in(*tensors, **given)

    trial(watched, SHAPES["llama"], 32, torch.bfloat16, CPU)
    assert asked == [[37, 0, 0, LATER]]


def test_the_trial_sees_a_result_that_is_not_a_number() -> None:
    def empty(q: Tensor, *rest: Any, **given: Any) -> Tensor:
        return torch.full_like(q, torch.nan)

    assert trial(empty, SHAPES["llama"], 32, torch.bfloat16, CPU) == torch.inf


def test_pages_are_a_view() -> None:
    pool = torch.arange(2 * 24 * 16).view(1, 2, 24, 16)
    pages = paged(pool, 8)
    assert pages.shape == (3, 8, 2, 16)
    assert pages.data_ptr() == pool.data_ptr()
    assert torch.equal(pages[2, 5, 1], pool[0, 1, 21])


def test_rows_are_the_other_back_ends() -> None:
    base = DenseKernels(PAGE)
    held, kernels = store_of(SPECS["sliding"]), Fa4Kernels(base, stand_in, PAGE)
    positions, q = torch.tensor([5, 40]), queries(SPECS["sliding"], 2)
    mask = kernels.row_mask(held.table[:2], positions, 8)
    found = kernels.rows(SPECS["sliding"])(q, held.k, held.v, mask)
    assert torch.equal(found, base.rows(SPECS["sliding"])(q, held.k, held.v, mask))
