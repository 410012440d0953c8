"""What is compiled of the products with 4-bit weights: see triton_cases.

Every tensor lies on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from flexinfer.kernels.fast.nf4.lora import nf4_lora_matmul
from flexinfer.kernels.fast.nf4.matmul import nf4_dequantise, nf4_matmul
from flexinfer.kernels.fast.nf4.tile import LEFT, Nf4Tile
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.nf4 import Nf4

META = torch.device("meta")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
OUTPUTS, INPUTS = 6144, 2560


def nf4_cases(*, newest: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield products with default tiles, in fp16 and fp32; with `newest` what tuning tries too."""
    table = TileTable({})
    for rows in (1, 16, 32, 64):
        tile = table.nf4(rows, OUTPUTS, INPUTS, split=True)
        assert tile is not None
        yield f"nf4, untuned, {rows}", partial(product, rows, tile)
        yield f"nf4 beside ranks, untuned, {rows}", partial(beside, rows, tile)
    yield "nf4 dequantised, untuned", dequantise
    few, many = Nf4Tile(16, 64, 128, 4, 2, 3), Nf4Tile(64, 64, 128, 1, 4, 3, LEFT)
    for dtype in (FP16, FP32):
        yield f"nf4 {dtype}", partial(product, 8, few, dtype=dtype)
    yield f"nf4 {list(many)}", partial(product, 8, many)
    yield f"nf4 beside ranks {list(many)}", partial(beside, 8, many)
    yield from tried() if newest else ()


def tried() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what tuning tries, every geometry once, least split first."""
    for rows in (8, 16, 32, 64):
        families = candidates.nf4(OUTPUTS, INPUTS, rows, 132)
        for made in (family.tiles[0] for family in families):
            yield f"nf4 tried {rows} {list(made)}", partial(product, rows, made)


def leaf(outputs: int, dtype: torch.dtype = BF16) -> Nf4:
    """Return a 4-bit leaf without memory."""
    packed = torch.empty(outputs, INPUTS // 2, dtype=torch.uint8, device=META)
    absmax = torch.empty(outputs, INPUTS // 64, device=META)
    return Nf4(packed, absmax, torch.empty(16, device=META), dtype)


def product(rows: int, tile: Nf4Tile, dtype: torch.dtype = BF16) -> None:
    """Launch a product."""
    x = torch.empty(rows, INPUTS, dtype=dtype, device=META)
    nf4_matmul(x, leaf(OUTPUTS, dtype), tile)


def beside(rows: int, tile: Nf4Tile) -> None:
    """Launch a product beside that of a side path's ranks, few and many."""
    x = torch.empty(rows, INPUTS, dtype=BF16, device=META)
    for ranks in (8, 96):
        a = torch.empty(ranks, INPUTS, dtype=BF16, device=META)
        nf4_lora_matmul(x, leaf(OUTPUTS), a, tile)


def dequantise() -> None:
    """Launch what writes the whole matrix."""
    nf4_dequantise(leaf(OUTPUTS))
