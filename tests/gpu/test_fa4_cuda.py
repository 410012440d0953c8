"""FA4 itself on Hopper and newer: what the stand-in of the CPU tests stands for.

Skipped where flash-attn-4 is not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.attention.choose_fa4 import fa4_obstacle
from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.fa4 import MANY, Fa4Kernels
from flexinfer.attention.fa4_trial import ERROR_LIMIT, trial
from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.engine import Engine
from tests.gpu.test_parity_cuda import PROMPTS, assert_near
from tests.support.cuda import LIMITS, wide_on_cuda
from tests.support.engines import complete, ids_of, request

pytestmark = pytest.mark.gpu
Open = Callable[..., Engine]
ON: dict[str, Any] = dict(LIMITS) | {"fa4_prefill": True}
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def fa4() -> None:
    """Let a test run where FA4 can."""
    there = find_spec("flash_attn") and find_spec("flash_attn.cute")
    version = metadata.version("flash-attn-4") if there else None
    why = fa4_obstacle(torch.cuda.get_device_capability(), 128, 4, version)
    if why is not None:
        pytest.skip(why)


def spec(heads: int, kv_heads: int, head_dim: int, window: int | None = None) -> LayerSpec:
    """Return a layer whose scale is none that a kernel might assume."""
    return LayerSpec(
        index=0, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=0.8 * head_dim**-0.5,
        window=window, kv_layer=0,
    )  # fmt: skip


@pytest.mark.parametrize("page", [16, 32, 128])
@pytest.mark.parametrize(
    "layer",
    [
        spec(32, 8, 128),
        spec(24, 8, 128),
        spec(8, 8, 64),
        spec(9, 3, 64),
        spec(8, 1, 128, window=50),
        spec(4, 2, 256),
    ],
    ids=str,
)
@torch.no_grad()
def test_chunks_over_pages(layer: LayerSpec, page: int) -> None:
    varlen = import_module("flash_attn.cute").flash_attn_varlen_func
    for dtype in (torch.bfloat16, torch.float16):
        assert trial(varlen, layer, page, dtype, CUDA) < ERROR_LIMIT
    assert trial(varlen, layer, page, torch.bfloat16, CUDA, MANY) < ERROR_LIMIT


LONG = [(300, 0), (1000, 500), (129, 0), (40, 2000)]
"""Queries of a chunk, and keys before them."""


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize(("head_dim", "page"), [(128, 32), (128, 64), (128, 128), (96, 32)])
@torch.no_grad()
def test_long_chunks_behind_cached_tokens(head_dim: int, page: int, window: int | None) -> None:
    """Chunks of many tiles, keys of many blocks, pages of random order; against plain attention."""
    varlen = import_module("flash_attn.cute").flash_attn_varlen_func
    layer = spec(8, 2, head_dim, window)
    columns = -(-max(sum(chunk) for chunk in LONG) // page)
    n_pages = len(LONG) * columns + 1
    table = (torch.randperm(n_pages - 1, device="cuda") + 1).view(len(LONG), columns).int()
    logical = torch.zeros(n_pages, dtype=torch.int32, device="cuda")
    logical[table.long()] = torch.arange(columns, dtype=torch.int32, device="cuda")
    k, v = (
        torch.randn(1, 2, n_pages * page, head_dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    tiles, owner = [], []
    for row, (length, cached) in enumerate(LONG):
        at = torch.arange(-(-length // 128) * 128, device="cuda")
        tiles.append(torch.where(at < length, cached + at, -1).view(-1, 128))
        owner += [row] * len(tiles[-1])
    positions, rows = torch.cat(tiles), table[torch.tensor(owner, device="cuda")]
    real = (positions >= 0).flatten()
    tiling = Tiling((real.cumsum(0) - 1).view_as(positions), real.nonzero()[:, 0])
    q = torch.randn(int(real.sum()), 8, head_dim, device="cuda", dtype=torch.bfloat16)
    plain = DenseKernels(page)
    found, expected = (
        kernels.tiles(layer)(q, k, v, tiling, kernels.tile_mask(rows, positions, logical, window))
        for kernels in (Fa4Kernels(plain, varlen, page), plain)
    )
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert error < 0.01


KEEPS = """
import time, torch
from flexinfer.attention.fa4_trial import ERROR_LIMIT, trial
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.fa4 import _keep_compiled
_keep_compiled(torch.cuda.get_device_capability())
from flash_attn.cute import flash_attn_varlen_func
layer = LayerSpec(index=0, heads=8, kv_heads=2, head_dim=64, scale=0.1, window=None, kv_layer=0)
started = time.perf_counter()
with torch.no_grad():
    error = trial(flash_attn_varlen_func, layer, 32, torch.bfloat16, torch.device("cuda"))
assert error < ERROR_LIMIT
print(time.perf_counter() - started)
"""


def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if "CUTE_DSL_CACHE" not in name}
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", KEEPS],
                env=kept | {"XDG_CACHE_HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert list(tmp_path.glob("flexinfer/flash-attn-4/sm_*/*/*/*.o"))
    assert seconds[1] < 0.5 * seconds[0]


@torch.no_grad()
def test_queries_that_stand_at_0_see_the_scratch_page_and_nothing_is_nan() -> None:
    """As the pad slot's in a captured step, in a table that is shorter than a tile."""
    varlen = import_module("flash_attn.cute").flash_attn_varlen_func
    layer, page = spec(4, 2, 64), 32
    kernels = Fa4Kernels(DenseKernels(page), varlen, page)
    pool = torch.zeros(1, 2, 4 * page, 64, device="cuda", dtype=torch.bfloat16)
    pool[:, :, 2 * page :] = torch.nan
    rows = torch.zeros(3, 2, dtype=torch.int32, device="cuda")
    rows[0] = 1
    positions = torch.zeros(3, 128, dtype=torch.int64, device="cuda")
    positions[0], positions[0, :9], positions[1, 100:] = -1, torch.arange(9, device="cuda"), -1
    positions[2] = -1
    mask = kernels.tile_mask(rows, positions, rows[0], None)
    q = torch.randn(109, 4, 64, device="cuda", dtype=torch.bfloat16)
    tiling = Tiling(torch.zeros_like(positions), torch.zeros(109, dtype=torch.int64))
    out = kernels.tiles(layer)(q, pool, pool, tiling, mask)
    assert out.isfinite().all()


@pytest.mark.parametrize("attention", ["triton", "flex", "dense"])
@pytest.mark.parametrize("chunk", [16384, 24])
@pytest.mark.parametrize("page", [16, 128])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma4"])
def test_engines_are_as_near_to_the_oracle_as_bf16_can_be(
    family: str, page: int, chunk: int, attention: str, open_engine: Open
) -> None:
    model, given = wide_on_cuda(family), ON | {"page_size": page}
    engine = open_engine(model, attention=attention, prefill_tokens=chunk, **given)
    assert any(line.startswith("FA4 prefill: on") for line in engine.notices)
    for _ in range(2):  # the second time from graphs
        found = complete(engine, PROMPTS, max_new_tokens=8)
        assert_near(model, wide_on_cuda(family, torch.float64), found)
    if attention != "dense":
        assert engine._machinery is not None
        assert engine._machinery.prefiller._captured


def test_samples_share_pages(open_engine: Open) -> None:
    model = wide_on_cuda("llama")
    engine = open_engine(model, attention="triton", prefill_tokens=24, **ON)
    given = {"max_new_tokens": 8, "temperature": 1.0, "seed": 3, "n": 3}
    together = engine.generate([request(p, **given) for p in PROMPTS])
    again = engine.generate([request(p, **given) for p in PROMPTS])
    assert [ids_of(o.outputs) for o in together] == [ids_of(o.outputs) for o in again]
