"""What is compiled for each capability: real models' steps, the shipped table, what tuning tries.

Every tensor lies on the meta device: shapes and dtypes without memory.
Shape letters: B rows, T tokens, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from transformers import AutoConfig

from flexinfer.config import EngineConfig
from flexinfer.core.sequence import Group
from flexinfer.core.sequence import Sequence as Row
from flexinfer.core.step import Chunk
from flexinfer.engine.setup import PAGE_SIZE, set_up
from flexinfer.engine.steps.batch import prefill_batch
from flexinfer.engine.steps.programs import Programs
from flexinfer.kernels.fast.attention import DecodeTile, paged_decode
from flexinfer.kernels.fast.gemm import gated_matmul, matmul
from flexinfer.kernels.fast.launch import await_inputs
from flexinfer.kernels.fast.prefill import PrefillTile, paged_prefill
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import QUERIES
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.sampler import SamplerKind
from flexinfer.models.catalog import build_decoder
from flexinfer.weights.load import LoadedModel
from flexinfer.weights.pack import allocate
from flexinfer.weights.skeleton import shell
from tests.support.engines import toy_tokenizer
from tests.support.triton_engine import fast_path
from tests.support.triton_lora_cases import lora_cases
from tests.support.triton_nf4_cases import nf4_cases

Entries = Mapping[str, Any]
"""Tiles of one device, as tiles.json has them."""
Case = tuple[str, Callable[[], None]]
META = torch.device("meta")
MODELS = ("qwen3-4b", "llama-3.2-3b-instruct", "gemma-4-E2B-it", "smollm2-135m-instruct")
"""Head dims 128, 256 and 512, and 64; 4, 3, 8 and 3 query heads a kv head."""
ROWS = (1, 32, 64, 256)
"""Those that attention was measured for; `product_cases` has the others of the products."""
PAGE = PAGE_SIZE["cuda"]
OTHER_PAGES = (8, 256)
"""The smallest that there is, and one larger than any tile."""
MEASURED = {"NVIDIA H200": 90}
"""Compute capability of every device in the shipped table."""


def capability_of(device: str) -> int:
    """Return the compute capability of a device of the table; KeyError: add it to MEASURED."""
    return MEASURED[device]


def shipped() -> dict[str, Any]:
    """Return the shipped tiles by device name."""
    found: dict[str, Any] = json.loads(
        files("flexinfer.kernels.fast.tiles").joinpath("tiles.json").read_text()
    )
    return found


def cases_for(capability: int) -> Iterator[Case]:
    """Yield every case of a capability.

    Devices that were not measured take default tiles; that their own tuning will find tiles like
    those of the table, with TMA or (before sm_90) without, is what "retold" stands for.
    """
    yield from nf4_cases(newest=capability >= 90)
    for name in MODELS:
        yield from model_cases(name, "untuned", {}, (1, 256))
    for device, entries in shipped().items():
        if capability_of(device) == capability:
            yield from page_cases()
            yield from product_cases(entries)
            yield from candidate_cases(int(capability >= 90))
            yield from lora_cases(entries)
            for name in MODELS[:3]:
                yield from model_cases(name, device, entries, ROWS)
        else:
            table = retold(entries, tma=capability >= 90)
            yield from lora_cases(table)
            for name in (MODELS[0], MODELS[2]):
                yield from model_cases(name, "retold", table, (16, 64))


def faulty_cases(capability: int) -> Iterator[Case]:
    """Yield cases that a check must object to: it is the checks that are tested here."""
    yield "too many stages", partial(product, "256x4096", 64, [64, 128, 128, 1, 4, 8, 1])
    yield "no power of two", partial(product, "256x4096", 64, [64, 48, 64, 1, 4, 3, 0])
    yield "too few warps", partial(decode_rows, "8x512x1", 64, [32, 1, 1, 2])
    yield "too early", lambda: early_kernel[(1,)](half(2), True, launch_pdl=True)


@triton.jit
def early_kernel(x, PDL: tl.constexpr):
    """Writes before it waits."""
    tl.store(x + 1, tl.load(x))
    await_inputs(PDL)


LISTS = {"all": cases_for, "faulty": faulty_cases}


def retold(entries: Entries, *, tma: bool) -> Entries:
    """Return the tiles of products, all of them loading by TMA or none."""

    def one(tile: list[int] | None) -> list[int] | None:
        return tile and [*tile[:-1], int(tma)]

    return {
        kind: {
            shape: {rows: one(tile) for rows, tile in found.items()}
            for shape, found in entries[kind].items()
        }
        for kind in ("matmul", "whole", "gated")
    }


@cache
def model(name: str) -> LoadedModel:
    """Return a real model in bf16 without memory, packed as loading packs it.

    Where all layers are alike, two of them stand for all.
    """
    text = files("flexinfer.assets").joinpath("configs", f"{name}.json").read_text()
    fields = json.loads(text)["config"]
    alike = {} if "gemma" in name else {"num_hidden_layers": 2, "layer_types": None}
    config = AutoConfig.for_model(**fields | alike).get_text_config()
    module = shell(config, {}, name)
    allocate(module, torch.bfloat16, META)
    return LoadedModel(
        name=name, module=module, tokenizer=toy_tokenizer(), generation_config={},
        eos_ids=frozenset(), notices=(), packed=True, load_s=0.0,
    )  # fmt: skip


def model_cases(name: str, told: str, table: Entries, rows: Sequence[int]) -> Iterator[Case]:
    """Yield the decode steps of a model at several batch sizes, and a prefill step."""
    for count in rows:
        yield f"{name}, {told}, decode {count}", partial(decode, name, table, count)
    yield f"{name}, {told}, prefill", partial(prefill, name, table)


def page_cases() -> Iterator[Case]:
    """Yield the steps whose attention depends on the page, for the widest heads."""
    for page in OTHER_PAGES:
        case = f"{MODELS[2]}, untuned, page {page}"
        yield f"{case}, decode", partial(decode, MODELS[2], {}, 16, page_size=page)
        yield f"{case}, prefill", partial(prefill, MODELS[2], {}, page_size=page)


def programs(name: str, table: Entries, rows: int, **limits: Any) -> Programs:
    """Build what an engine would run."""
    with fast_path(TileTable(table)):
        config = EngineConfig(max_batch_size=rows, cuda_graphs=False, **limits)
        return set_up(model(name), config).programs


def decode(name: str, table: Entries, rows: int, **limits: Any) -> None:
    """Launch all kernels of a decode step, greedy and random."""
    held = programs(name, table, rows, **limits)
    slots = torch.zeros(rows, dtype=torch.int64, device=META)
    for kind in (SamplerKind.GREEDY, SamplerKind.RANDOM):
        held.decode(slots, kind, held.tables.table.shape[1])


def prefill(name: str, table: Entries, tokens: int = 512, **limits: Any) -> None:
    """Launch all kernels of a prefill step of two prompts."""
    held = programs(name, table, 2, **limits)
    sequences = [Row(Group((5,) * tokens), 1, slot=slot) for slot in range(2)]
    chunks = [Chunk(sequence, 0, tokens, True) for sequence in sequences]
    batch = prefill_batch(chunks, held.tile, 2, held.tables.pad_slot).on(META)
    held.prefill(batch, SamplerKind.RANDOM)


def product_cases(entries: Entries) -> Iterator[Case]:
    """Yield every product's tile of a table at the shape and the rows it was measured for.

    Attention's tiles are compiled by the models' steps: see `attention_shapes`.
    """
    for kind, launch in {"matmul": product, "whole": product, "gated": gated}.items():
        for shape, found in entries[kind].items():
            for rows, tile in found.items():
                if tile is not None:
                    yield f"{kind} {shape} {rows} {tile}", partial(launch, shape, int(rows), tile)


def candidate_cases(tma: int) -> Iterator[Case]:
    """Yield what tuning tries, every geometry once, least split first."""
    N, K = 4096, 2048
    for rows in (1, 32, 64, 128):
        for family in candidates.products(N, K, rows, 132, tma):
            tile = list(family.tiles[0])
            yield f"tried {rows} {tile}", partial(product, f"{N}x{K}", rows, tile)
        for family in candidates.gated(N, K, rows, tma):
            tile = list(family.tiles[0])
            yield f"tried gated {rows} {tile}", partial(gated, f"{N}x{K}", rows, tile)
    for shape in ("4x128x8", "8x256x1", "8x512x1"):
        group, head_dim, kv_heads = map(int, shape.split("x"))
        for family in candidates.decode(64, head_dim, kv_heads, 132):
            tile = list(family.tiles[family.start])
            yield f"tried decode {shape} {tile}", partial(decode_rows, shape, 64, tile)
        for (one,), _ in candidates.prefill(head_dim):
            shape_H = (group * kv_heads, kv_heads, head_dim)
            yield f"tried prefill {head_dim} {one}", partial(prefill_tiles, *shape_H, one)


def attention_shapes() -> set[str]:
    """Return the attention of all models as the table's keys: group x head dim x kv heads."""
    return {
        f"{spec.heads // spec.kv_heads}x{spec.head_dim}x{min(spec.kv_heads, 8)}"
        for name in MODELS
        for spec in build_decoder(model(name).module).specs
    }


def half(*shape: int) -> Tensor:
    """Return a bf16 tensor without memory."""
    return torch.empty(shape, dtype=torch.bfloat16, device=META)


def product(shape: str, rows: int, tile: list[int]) -> None:
    """Launch a product of `outputs x inputs`."""
    outputs, inputs = map(int, shape.split("x"))
    matmul(half(rows, inputs), half(outputs, inputs), Tile(*tile))


def gated(shape: str, rows: int, tile: list[int]) -> None:
    """Launch a gated product of `outputs x inputs` with both activations."""
    outputs, inputs = map(int, shape.split("x"))
    for activation in ("silu", "gelu_pytorch_tanh"):
        gated_matmul(half(rows, inputs), half(2 * outputs, inputs), activation, Tile(*tile))


def decode_rows(shape: str, rows: int, tile: list[int]) -> None:
    """Launch decode attention of `group x head dim x kv heads`."""
    group, D, G = map(int, shape.split("x"))
    pools = (half(1, G, 64 * PAGE, D), half(1, G, 64 * PAGE, D))
    table = torch.empty(rows, 64, dtype=torch.int32, device=META)
    positions = torch.empty(rows, dtype=torch.int64, device=META)
    q_BHD = half(rows, group * G, D)
    paged_decode(q_BHD, pools, table, positions, PAGE, None, D**-0.5, DecodeTile(*tile))


def prefill_tiles(H: int, G: int, D: int, tile: PrefillTile) -> None:
    """Launch prefill attention of eight tiles of queries."""
    pools = (half(1, G, 64 * PAGE, D), half(1, G, 64 * PAGE, D))
    at = torch.empty(8, QUERIES, dtype=torch.int64, device=META)
    table = torch.empty(8, 64, dtype=torch.int32, device=META)
    q_THD = half(at.numel(), H, D)
    paged_prefill(q_THD, pools, at, at, table, PAGE, None, D**-0.5, tile)
