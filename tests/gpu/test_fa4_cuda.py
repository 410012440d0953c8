"""FA4 itself on Hopper and newer: what the stand-in of the CPU tests stands for.

Skipped where flash-attn-4 is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from flexinfer.attention.choose_fa4 import HOPPER
from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.fa4 import ERROR_LIMIT, MANY, Fa4Kernels, trial
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
    if torch.cuda.get_device_capability() < HOPPER:
        pytest.skip("FA4 needs Hopper")
    if find_spec("flash_attn") is None:
        pytest.skip("flash-attn-4 is not installed")


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
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_engines_are_as_near_to_the_oracle_as_bf16_can_be(
    family: str, chunk: int, attention: str, open_engine: Open
) -> None:
    model = wide_on_cuda(family)
    engine = open_engine(model, attention=attention, prefill_tokens=chunk, **ON)
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
