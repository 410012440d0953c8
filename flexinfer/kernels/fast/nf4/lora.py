"""A side path's product down to the ranks beside that of packed NF4 weights: as lora/low.py does.

Shape letters: M rows, N outputs, K inputs, R ranks (of all members of a group), S splits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.lora.low import room
from flexinfer.kernels.fast.nf4.lut import table_of
from flexinfer.kernels.fast.nf4.tile import (
    DTYPES,
    Nf4Tile,
    check_nf4,
    look_up,
    share_inputs,
    ways,
    words_of,
)
from flexinfer.kernels.fast.nf4.turns import share, store_block
from flexinfer.kernels.fast.tile import load_block
from flexinfer.kernels.nf4 import Nf4

LEAST_RANKS = 16
"""Ranks of a block at least: what tensor cores take."""


@triton.jit(do_not_specialize=["M"])
def nf4_lora_kernel(
    x, words, w, absmax, code, a, out, M, N, R, K, per, stride,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    LUT: tl.constexpr, FORM: tl.constexpr, WAYS: tl.constexpr, dtype: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m] = x[m] w^T, then x[m] a^T, over share s.

    `words` is `x` as it is read beside weights. Grid (N / BN + R / BR, S, M / BM); rows of
    `out` lie `stride` apart.
    """
    block = tl.program_id(0)
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    low = block - tl.cdiv(N, BN)
    table = table_of(code, LUT)
    await_inputs(PDL)
    if low >= 0:
        r0 = low * BR
        low_sums = tl.zeros([BM, BR], dtype=tl.float32)
        end = tl.minimum(part * per + per, K)
        for k in tl.range(part * per, end, BK, num_stages=STAGES):
            ranks = load_block(a, r0, k, R, K, BR, BK, 0)
            inputs = load_block(x, m0, k, M, K, BM, BK, 0)
            low_sums = tl.dot(inputs, ranks.T, low_sums, input_precision="ieee")
        release_next(PDL)
        store_block(low_sums, out, m0, r0, N + r0, part, M, R, stride, BM, BR)
    else:
        n0 = block * BN
        sums = share(
            words, w, absmax, table, n0, m0, part * per, per, M, N, K,
            BM, BN, BK, STAGES, LUT, FORM, WAYS, dtype,
        )  # fmt: skip
        release_next(PDL)
        store_block(sums, out, m0, n0, n0, part, M, N, stride, BM, BN)


def nf4_lora_matmul(x_MK: Tensor, leaf: Nf4, a_RK: Tensor, tile: Nf4Tile) -> Tensor:
    """Return x w^T and x a^T side by side, [S, M, N + R]: fp32 partial sums where S > 1.

    See `nf4_matmul`, and lora.low.lora_matmul for what consumes it. A block of ranks is as narrow
    as keeps its share of A as small as a block's packed weights: all blocks of a launch get the
    shared memory of the largest, and A has 16 bits a weight.
    """
    (M, K), N, R = x_MK.shape, leaf.rows, len(a_RK)
    check_nf4(x_MK, leaf, tile)
    assert a_RK.dtype == x_MK.dtype, (a_RK.dtype, x_MK.dtype)
    assert a_RK.stride() == (K, 1), "A must be row-major"
    BR = max(LEAST_RANKS, tile.BN // 4)
    out, pdl = room(x_MK, N + R, tile.split), dependent(x_MK, M)
    grid = (triton.cdiv(N, tile.BN) + triton.cdiv(R, BR), tile.split, triton.cdiv(M, tile.BM))
    nf4_lora_kernel[grid](
        x_MK, words_of(x_MK, tile), leaf.packed, leaf.absmax, leaf.code, a_RK, out, M, N, R, K,
        share_inputs(K, tile), out.stride(1), tile.BM, tile.BN, BR, tile.BK, tile.stages,
        look_up(), tile.form, ways(tile), DTYPES[leaf.dtype], pdl,
        num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out
