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
    nf4_operands,
    words_of,
)
from flexinfer.kernels.fast.nf4.turns import (
    inputs_of,
    no_sums,
    share,
    store_block,
    turn,
    whole_turn,
)
from flexinfer.kernels.fast.tile import load_block
from flexinfer.kernels.nf4 import Nf4


@triton.jit
def _low_share(
    acc, x, a, r0, m0, first, per, M, R, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    FORM: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Add to acc the products with rows of `a`, read as `x` is."""
    WORD: tl.constexpr = 1 if FORM else 2
    for k in tl.range(first, first + per, BK, num_stages=STAGES):
        low = load_block(a, r0, k // WORD, R, K // WORD, BN, BK // WORD, 0)
        inputs = load_block(x, m0, k // WORD, M, K // WORD, BM, BK // WORD, TMA)
        if FORM == 0:
            even, odd = inputs_of(low, dtype)
            acc = turn(acc, even, odd, inputs, FORM, dtype)
        else:
            acc = whole_turn(acc, low, inputs, FORM)
    return acc


@triton.jit(do_not_specialize=["M"])
def nf4_lora_kernel(
    x, w, absmax, code, a, out, M, N, R, K, per, stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
    LUT: tl.constexpr, FORM: tl.constexpr, dtype: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m] = x[m] w^T, then x[m] a^T, over share s: see lora.low.lora_matmul_kernel."""
    n0 = tl.program_id(0) * BN
    part = tl.program_id(1)
    m0 = tl.program_id(2) * BM
    r0 = n0 - tl.cdiv(N, BN) * BN
    acc = no_sums(BM, BN, FORM)
    table = table_of(code, LUT)
    row, column, rows = n0, n0, N
    await_inputs(PDL)
    if r0 >= 0:
        row, column, rows = r0, N + r0, R
        acc = _low_share(
            acc, x, a, r0, m0, part * per, per, M, R, K, BM, BN, BK, TMA, STAGES, FORM, dtype
        )
    else:
        acc = share(
            acc, x, w, absmax, table, n0, m0, part * per, per, M, N, K,
            BM, BN, BK, TMA, STAGES, LUT, FORM, dtype,
        )  # fmt: skip
    release_next(PDL)
    store_block(acc, out, m0, row, column, part, M, rows, stride, BM, BN, FORM)


def nf4_lora_matmul(x_MK: Tensor, leaf: Nf4, a_RK: Tensor, tile: Nf4Tile) -> Tensor:
    """Return x w^T and x a^T side by side, [S, M, N + R]: fp32 partial sums where S > 1.

    See `nf4_matmul`, and lora.low.lora_matmul for what consumes it.
    """
    (M, K), N, R = x_MK.shape, leaf.rows, len(a_RK)
    check_nf4(x_MK, leaf, tile)
    assert a_RK.dtype == x_MK.dtype, (a_RK.dtype, x_MK.dtype)
    assert a_RK.stride() == (K, 1), "A must be row-major"
    assert N % tile.BN == 0 or not tile.tma, (N, tile)
    out, pdl = room(x_MK, N + R, tile.split), dependent(x_MK, M)
    grid = (triton.cdiv(N, tile.BN) + triton.cdiv(R, tile.BN), tile.split, triton.cdiv(M, tile.BM))
    nf4_lora_kernel[grid](
        *nf4_operands(x_MK, leaf, tile), leaf.absmax, leaf.code, words_of(a_RK, tile),
        out, M, N, R, K, K // tile.split, out.stride(1),
        tile.BM, tile.BN, tile.BK, tile.tma, tile.stages,
        look_up(tile.form), tile.form, DTYPES[leaf.dtype], pdl,
        num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out
