"""What trials run: one operation at one shape, over more weights than the L2 cache holds.

A decode step never finds its weights in the cache, so a trial goes round copies that are more than
twice its size together. A product is followed by the kernel that reads it, since partial sums are
cheap to write and dear to read.

Shape letters: N outputs, K inputs, B rows, T tokens, H query heads, G kv heads, D head dim, P page
columns, C copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.fast.attention import paged_decode
from flexinfer.kernels.fast.gemm import gated_matmul, matmul
from flexinfer.kernels.fast.glue import act_mul
from flexinfer.kernels.fast.nf4.matmul import nf4_dequantise, nf4_matmul
from flexinfer.kernels.fast.norms import add_norm
from flexinfer.kernels.fast.prefill import paged_prefill
from flexinfer.kernels.fast.tiles.format import QUERIES
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.fast.tuning.race import Trial
from flexinfer.kernels.nf4 import BLOCK, CODE, Nf4

PAGE = 32
"""Tokens of a page, as the engine has it on CUDA."""
SHORTEST, LONGEST = 160, 672
"""Tokens that rows of decode attention look back on: spread evenly between these."""
PROMPTS, PROMPT = 2, 2048
"""Prompts of a prefill trial, and their tokens."""
WIDEST_READ = 16384
"""Outputs up to which a product is read by a norm; wider ones are logits and have no split."""
Read = Callable[[Tensor], Tensor]
Launch = Callable[[int, Any], Tensor]
"""launch(copy, tile): run the operation on one copy of the weights."""


class Bench(NamedTuple):
    """What the trials of one shape run on; `expected` is copy 0's result by cuBLAS or default."""

    launch: Launch
    copies: int
    expected: Tensor


class Benches:
    """Builds benches on one device; they share one buffer of weights, so only the last is good."""

    def __init__(self, device: torch.device, dtype: torch.dtype, cache_bytes: int) -> None:
        """Take where and in which dtype, and the size of the L2 cache."""
        self._device, self._dtype, self._cache_bytes = device, dtype, cache_bytes
        self._generator = torch.Generator(device).manual_seed(0)
        self._flat = torch.empty(0, dtype=dtype, device=device)

    def build(self, trial: Trial) -> Bench:
        """Return what a trial runs on, whatever its tile."""
        make: dict[str, Callable[[Any, int], Bench]] = {
            "products": self._products, "gated": self._gated, "decode": self._decode,
            "prefill": self._prefill, "sides": self._products, "nf4": self._nf4,
            "nf4_sides": self._nf4_sides,
        }  # fmt: skip
        return make[trial.kind](trial.shape, trial.rows)

    def _random(self, *shape: int, std: float = 1.0) -> Tensor:
        """Return normal values."""
        made = torch.empty(shape, dtype=self._dtype, device=self._device)
        return made.normal_(0.0, std, generator=self._generator)

    def _rotation(self, n_bytes: int) -> int:
        """Return how many copies of something are more than twice the cache."""
        return 2 * self._cache_bytes // n_bytes + 1

    def _weights(self, *shape: int) -> list[Tensor]:
        """Return a rotation of weights, cut from one buffer that grows with the largest."""
        count = torch.Size(shape).numel()
        step = -(-count // 128) * 128
        copies = self._rotation(count * self._dtype.itemsize)
        flat = self._buffer(copies * step)
        return [flat[i * step : i * step + count].view(shape) for i in range(copies)]

    def _buffer(self, count: int) -> Tensor:
        """Return `count` small random values; what was returned before is gone."""
        if self._flat.numel() < count:
            self._flat = self._flat.new_empty(0)
            self._flat = self._random(count, std=0.02)
        return self._flat[:count]

    def _products(self, shape: tuple[int, int], rows: int) -> Bench:
        """Return [rows, K] x [N, K]^T, and an add and norm that read it."""
        N, K = shape
        weights = self._weights(N, K)
        x, norm = self._random(rows, K), self._random(N)
        residual = x.new_zeros(rows, N) if N <= WIDEST_READ else None

        def launch(copy: int, tile: Any) -> Tensor:
            w = weights[copy]
            out = F.linear(x, w) if tile is None else matmul(x, w, tile)
            return out if residual is None else add_norm(residual, out, norm, 1e-6)[0]

        return Bench(launch, len(weights), launch(0, None))

    def _gated(self, shape: tuple[int, int], rows: int) -> Bench:
        """Return silu(x gate^T) * (x up^T) with N results a row."""
        N, K = shape
        weights, x = self._weights(2 * N, K), self._random(rows, K)

        def launch(copy: int, tile: Any) -> Tensor:
            w = weights[copy]
            return (
                act_mul(F.linear(x, w), "silu")
                if tile is None
                else gated_matmul(x, w, "silu", tile)
            )

        return Bench(launch, len(weights), launch(0, None))

    def _nf4(self, shape: tuple[int, int], rows: int) -> Bench:
        """Return the product with 4-bit weights, read as that of `_products` is."""
        N, norm = shape[0], self._random(shape[0])
        residual = torch.zeros(rows, N, dtype=self._dtype, device=self._device)
        read = (lambda out: add_norm(residual, out, norm, 1e-6)[0]) if N <= WIDEST_READ else None
        return self._packed(shape, rows, read)

    def _nf4_sides(self, shape: tuple[int, int], rows: int) -> Bench:
        """Return gate and up of 4-bit weights as one product, and their activation."""
        return self._packed(shape, rows, lambda out: act_mul(out, "silu", dtype=self._dtype))

    def _packed(self, shape: tuple[int, int], rows: int, read: Read | None) -> Bench:
        """Return the product with 4-bit weights, and what reads it."""
        leaves, x = self._leaves(*shape), self._random(rows, shape[1])

        def launch(copy: int, tile: Any) -> Tensor:
            leaf = leaves[copy]
            out = F.linear(x, nf4_dequantise(leaf)) if tile is None else nf4_matmul(x, leaf, tile)
            return out if read is None else read(out)

        return Bench(launch, len(leaves), launch(0, None))

    def _leaves(self, N: int, K: int) -> list[Nf4]:
        """Return a rotation of 4-bit weights: any bytes are some, here those of the buffer."""
        blocks = N * K // BLOCK
        copies, step = self._rotation(N * K // 2 + 4 * blocks), -(-N * K // 256) * 128
        size = self._dtype.itemsize
        flat = self._buffer(-(-copies * step // size)).view(torch.uint8)
        scales = self._random(copies, N, K // BLOCK, std=0.01).abs().float()
        code = torch.tensor(CODE, device=self._device)
        packed = [flat[i * step : i * step + N * K // 2].view(N, K // 2) for i in range(copies)]
        return [
            Nf4(bytes_, scale, code, self._dtype)
            for bytes_, scale in zip(packed, scales, strict=True)
        ]

    def _decode(self, shape: tuple[int, int, int], rows: int) -> Bench:
        """Return decode attention of rows of several lengths, each over pages of its own."""
        group, D, G = shape
        columns = LONGEST // PAGE
        read = rows * (SHORTEST + LONGEST) // 2 * G * D * 2 * self._dtype.itemsize
        copies = self._rotation(read)
        pages = torch.arange(copies * rows * columns, dtype=torch.int32, device=self._device)
        table_CBP = F.pad(pages.view(copies, rows, columns), (0, 32 - columns))
        pools = self._pools(G, pages.numel(), D)
        spread = torch.linspace(SHORTEST, LONGEST, rows + 2, device=self._device)[1:-1]
        positions, q_BHD = spread.long() - 1, self._random(rows, group * G, D)

        def launch(copy: int, tile: Any) -> Tensor:
            return paged_decode(q_BHD, pools, table_CBP[copy], positions, PAGE, None, D**-0.5, tile)

        default = TileTable({}).decode(rows, group, D, G)
        return Bench(launch, copies, launch(0, default))

    def _prefill(self, shape: tuple[int, int, int, int], rows: int) -> Bench:
        """Return prefill attention of whole prompts; `rows` means nothing."""
        D, H, G, window = shape
        tokens, tiles = PROMPTS * PROMPT, PROMPTS * PROMPT // QUERIES
        at = torch.arange(tokens, device=self._device).view(tiles, QUERIES)
        pages = torch.arange(tokens // PAGE, dtype=torch.int32, device=self._device)
        table_NP = pages.view(PROMPTS, -1).repeat_interleave(tiles // PROMPTS, 0)
        pools, q_THD = self._pools(G, pages.numel(), D), self._random(tokens, H, D)

        def launch(copy: int, tile: Any) -> Tensor:
            return paged_prefill(
                q_THD, pools, at, at % PROMPT, table_NP, PAGE, window or None, D**-0.5, tile
            )

        return Bench(launch, 1, launch(0, TileTable({}).prefill(D)))

    def _pools(self, G: int, pages: int, D: int) -> tuple[Tensor, Tensor]:
        """Return K and V pools [1, G, rows, D]."""
        k, v = self._buffer(2 * G * pages * PAGE * D).view(2, 1, G, pages * PAGE, D)
        return k, v
