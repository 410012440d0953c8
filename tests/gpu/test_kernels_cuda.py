"""Kernels on CUDA: bf16 attention against fp64 at published models' shapes, sampling, launching."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from flexinfer.attention.choose import decode_options, prefill_options
from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.flex import FlexKernels
from flexinfer.attention.kernel import AttentionKernels
from flexinfer.attention.masks import Tiling
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.engine import RECOMPILE
from flexinfer.engine.steps.state import SlotState, SlotTensors
from flexinfer.kernels.sampler import SamplerKind, gumbel, sample
from tests.support.brute import attend

pytestmark = pytest.mark.gpu
PAGE, COLUMNS, TILE = 32, 6, 128
POSITIONS = (0, 31, 32, 33, 100, 190)
N_PAGES = len(POSITIONS) * COLUMNS + 1
SHAPES = [(64, 1), (64, 3), (128, 3), (128, 4), (128, 8), (256, 8), (512, 8), (512, 1)]
"""(head dim, query heads a kv head)."""
backends = pytest.mark.parametrize("backend", ["dense", "flex", "triton"])
shapes = pytest.mark.parametrize(("head_dim", "group"), SHAPES)
windows = pytest.mark.parametrize("window", [None, 40])


def kernels(backend: str) -> AttentionKernels:
    """Build a back end as the engine would."""
    if backend == "dense":
        return DenseKernels(PAGE)
    if backend == "triton":
        from flexinfer.attention.paged_triton import TritonKernels
        from flexinfer.kernels.fast.tiles.table import TileTable

        return TritonKernels(PAGE, TileTable.of_device(torch.cuda.get_device_name()))
    options = (
        partial(chosen, page=PAGE, on_cuda=True, given={})
        for chosen in (decode_options, prefill_options)
    )
    return FlexKernels(PAGE, N_PAGES, True, *options)


def spec_of(head_dim: int, group: int, window: int | None) -> LayerSpec:
    return LayerSpec(
        index=0, heads=2 * group, kv_heads=2, head_dim=head_dim, scale=head_dim**-0.5,
        window=window, kv_layer=0,
    )  # fmt: skip


def pools(spec: LayerSpec) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return K, V, page table and logical columns; rows 0 and 1 share two pages."""
    generator = torch.Generator().manual_seed(3)
    shape = (1, spec.kv_heads, N_PAGES * PAGE, spec.head_dim)
    k, v = (torch.randn(shape, generator=generator).bfloat16().cuda() for _ in range(2))
    order = torch.randperm(N_PAGES - 1, generator=generator) + 1
    table = order[: len(POSITIONS) * COLUMNS].view(-1, COLUMNS).int()
    table[1, :2] = table[0, :2]
    logical = torch.zeros(N_PAGES, dtype=torch.int32)
    logical[table.long()] = torch.arange(COLUMNS, dtype=torch.int32)
    return k, v, table.cuda(), logical.cuda()


def queries(count: int, spec: LayerSpec) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(count, spec.heads, spec.head_dim, generator=generator)
    return q.bfloat16().cuda()


def exact(q_HD: Tensor, k: Tensor, v: Tensor, row_P: Tensor, at: int, spec: LayerSpec) -> Tensor:
    """Return the definition's attention in fp32 for one query."""
    index = (row_P.long()[:, None] * PAGE + torch.arange(PAGE, device="cuda")).flatten()
    return attend(q_HD.float(), k[0, :, index], v[0, :, index], at, spec)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Allow a bf16 rounding of values of about 1 (2**-8) and a bf16 softmax weight."""
    error = (found.float() - expected).abs()
    assert float(error.max()) < 0.03
    assert float(error.mean()) < 0.003
    assert float(expected.abs().mean()) > 0.02


@backends
@windows
@shapes
def test_rows(head_dim: int, group: int, window: int | None, backend: str) -> None:
    spec, kernel = spec_of(head_dim, group, window), kernels(backend)
    k, v, table, _ = pools(spec)
    q = queries(len(POSITIONS), spec)
    positions = torch.tensor(POSITIONS, device="cuda")
    with torch.no_grad(), torch._dynamo.config.patch(RECOMPILE):
        mask = kernel.row_mask(table, positions, window)
        found = kernel.rows(spec)(q, k, v, mask)
    rows = [exact(q[i], k, v, table[i], at, spec) for i, at in enumerate(POSITIONS)]
    assert_close(found, torch.stack(rows))


@backends
@windows
@shapes
def test_tiles(head_dim: int, group: int, window: int | None, backend: str) -> None:
    """Three tiles of two sequences, one of them padded; queries 0..127, 128..180 and 50..177."""
    spec, kernel = spec_of(head_dim, group, window), kernels(backend)
    k, v, table, logical = pools(spec)
    spans = [(0, 0, 128), (0, 128, 181), (1, 50, 178)]
    at = torch.full((3, TILE), -1)
    source = torch.zeros(3, TILE, dtype=torch.long)
    place: list[int] = []
    for tile, (_, start, end) in enumerate(spans):
        at[tile, : end - start] = torch.arange(start, end)
        source[tile] = len(place) + torch.arange(TILE).clamp(max=end - start - 1)
        place += range(tile * TILE, tile * TILE + end - start)
    q = queries(len(place), spec)
    tiling = Tiling(source.cuda(), torch.tensor(place).cuda())
    rows = table[[row for row, _, _ in spans]]
    with torch.no_grad(), torch._dynamo.config.patch(RECOMPILE):
        mask = kernel.tile_mask(rows, at.cuda(), logical, window)
        found = kernel.tiles(spec)(q, k, v, tiling, mask)
    packed = [(row, p) for row, start, end in spans for p in range(start, end)]
    chosen = range(0, len(packed), 7)
    expected = [exact(q[i], k, v, table[packed[i][0]], packed[i][1], spec) for i in chosen]
    assert_close(found[list(chosen)], torch.stack(expected))


def test_noise_is_the_cpus() -> None:
    seeds, positions = torch.arange(20), torch.arange(20) * 3
    index = torch.arange(5000, dtype=torch.int32)[None]
    on_cpu = gumbel(seeds, positions, index)
    on_cuda = gumbel(seeds.cuda(), positions.cuda(), index.cuda()).cpu()
    torch.testing.assert_close(on_cuda, on_cpu, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("vocab", [500, 2048, 5001, 151_936])
def test_the_fast_sampler_is_the_plain_one(vocab: int) -> None:
    from flexinfer.kernels.fast.sampler import sample_and_feed

    count = 33
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(count, vocab, generator=generator) * 3).cuda()
    state = SlotState(count, vocab, torch.device("cuda"))
    slots, positions = torch.arange(count).cuda(), torch.arange(count).cuda() * 5
    for kind in (SamplerKind.GREEDY, SamplerKind.RANDOM):
        heat = 0.0 if kind == SamplerKind.GREEDY else 0.8
        state.tensors.temperature[:count] = heat
        state.tensors.seed[:count] = 9
        untouched = SlotTensors(*(tensor.clone() for tensor in state.tensors))
        packed = sample_and_feed(logits, slots, positions, state.tensors, kind)
        given = untouched.sampler_rows(slots, positions + 1)
        plain = sample(logits, given, kind, None)
        assert torch.equal(packed[0].long(), plain.tokens)
        torch.testing.assert_close(
            packed[1].view(torch.float32), plain.logprobs, atol=1e-4, rtol=1e-5
        )
        assert torch.equal(state.tensors.tokens[:count], plain.tokens)
        assert torch.equal(state.tensors.positions[:count], positions + 1)


@pytest.mark.parametrize("adapted", [False, True])
def test_activations_leave_shared_memory_to_what_reads_them(
    adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flexinfer.kernels.fast import launch
    from flexinfer.kernels.fast.glue import act_mul
    from flexinfer.kernels.fast.lora.add import lora_gated

    asked: list[int] = []
    monkeypatch.setattr(launch, "_prefer_shared", asked.append)
    if adapted:
        partials = torch.randn(2, 16, 128 + 16, device="cuda")
        lora_gated(partials, torch.randn(128, 16, device="cuda").bfloat16(), "silu", (8, 8))
    else:
        act_mul(torch.randn(16, 512, device="cuda", dtype=torch.bfloat16), "silu")
    monkeypatch.undo()
    launch.ask_shared(SimpleNamespace(function=asked[0]))
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    error = driver.cuFuncGetAttribute(
        ctypes.byref(found), launch.CARVEOUT, ctypes.c_void_p(asked[0])
    )
    assert (error, found.value) == (0, launch.SHARED_PERCENT)
