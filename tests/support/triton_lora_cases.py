"""What is compiled of adapters for each capability: side paths with every tile, and merges.

Shape letters: M rows, N outputs, K inputs, R ranks, S splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flexinfer.kernels.fast.lora.add import lora_add, lora_gated
from flexinfer.kernels.fast.lora.low import gated_tile, lora_linear, lora_matmul
from flexinfer.kernels.fast.lora.merge import merge
from flexinfer.kernels.fast.tile import Tile

Case = tuple[str, Callable[[], None]]
META = torch.device("meta")
MOST_ROWS = 64
"""Rows up to which side paths have tiles of their own."""
DTYPES = (torch.bfloat16, torch.float16)
GROUPS = (((4096, 1024, 1024), (32, 32, 32)), ((576, 192, 192), (8, 0, 17)), ((2560,), (128,)))
"""Widths and ranks: Qwen3-4B's, SmolLM2's with odd ones, and a member alone."""


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device=META)


def lora_cases(entries: Mapping[str, Any]) -> Iterator[Case]:
    """Yield every tile of a table that a side path can be given, and all that has no tile."""
    yield from product_cases(entries)
    for dtype in DTYPES:
        yield f"lora, untuned, {dtype}", partial(cublas, dtype)
        for widths, ranks in GROUPS:
            for splits in (1, 2, 4):
                case = f"lora, untuned, {widths}, {ranks}, {splits} {dtype}"
                yield case, partial(add, widths, ranks, splits, dtype)
        for ranks_2 in ((32, 32), (0, 100)):
            for splits in (1, 4):
                case = f"lora gated, untuned, {ranks_2}, {splits} {dtype}"
                yield case, partial(gated, ranks_2, splits, dtype)
        for rank in (8, 32, 100):
            for master in (dtype, torch.float32):
                case = f"merge, untuned, {rank}, {dtype} and {master}"
                yield case, partial(merged, rank, dtype, master)
    yield "merge, untuned, fp32", partial(merged, 32, torch.float32, torch.float32)


def product_cases(entries: Mapping[str, Any]) -> Iterator[Case]:
    """Yield products down to the ranks, every tile at one shape that it divides."""
    tiles = {tile for kind in ("matmul", "gated") for tile in tiles_of(entries.get(kind, {}))}
    for tile in sorted(tiles):
        yield f"lora {list(tile)}", partial(product, tile, 32)
    yield f"lora {list(max(tiles))}, odd", partial(product, max(tiles), 7)
    for tile in sorted(gated_tile(tile) for tile in tiles_of(entries.get("gated", {}))):
        yield f"lora gate and up {list(tile)}", partial(product, tile, 64)


def tiles_of(shapes: Mapping[str, Mapping[str, list[int] | None]]) -> set[Tile]:
    """Return the tiles of few rows."""
    return {
        Tile(*tile)
        for found in shapes.values()
        for rows, tile in found.items()
        if tile is not None and int(rows) <= MOST_ROWS
    }


def product(tile: Tile, rank: int) -> None:
    """Launch a product down to the ranks."""
    inputs = 8 * tile.split * tile.BK
    lora_matmul(empty(tile.BM, inputs), empty(4096, inputs), empty(rank, inputs), tile)


def cublas(dtype: torch.dtype) -> None:
    """Launch what follows cuBLAS's products."""
    x, w, a = (empty(n, 512, dtype=dtype) for n in (256, 512, 32))
    lora_add(lora_linear(x, w, a), empty(512, 32, dtype=dtype), (512,), (32,))


def partials(splits: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Return 64 rows of a product's result."""
    return empty(splits, 64, columns, dtype=dtype if splits == 1 else torch.float32)


def add(widths: tuple[int, ...], ranks: tuple[int, ...], splits: int, dtype: torch.dtype) -> None:
    """Launch the rest of a side path."""
    N, R = sum(widths), sum(ranks)
    lora_add(partials(splits, N + R, dtype), empty(N, R, dtype=dtype), widths, ranks)


def gated(ranks: tuple[int, int], splits: int, dtype: torch.dtype) -> None:
    """Launch the rest of gate's and up's side paths with both activations."""
    N, R = 2 * 9728, sum(ranks)
    for activation in ("silu", "gelu_pytorch_tanh"):
        lora_gated(partials(splits, N + R, dtype), empty(N, R, dtype=dtype), activation, ranks)


def merged(rank: int, dtype: torch.dtype, master: torch.dtype) -> None:
    """Launch a merge of factors of one dtype into a base of another."""
    a, b = empty(rank, 4096, dtype=master), empty(2560, rank, dtype=master)
    merge(empty(2560, 4096, dtype=dtype), a, b, 2.0, empty(2560, 4096, dtype=dtype))
