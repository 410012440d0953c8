"""Merging an adapter into a copy of a weight in one pass: base + scale (b a), rounded once.

Bound by reading the base and writing the copy; the ranks come out of the cache.
Shape letters: N outputs, K inputs, R rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BN, BK = 64, 128
BR = 32
"""Ranks a turn, at most; what is missing to it is masked."""
FACTORS = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of factors that are multiplied as they are."""


@triton.jit
def merge_kernel(
    base, a, b, out, scale, N, K, R, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """out[n, k] = base[n, k] + scale * sum_r b[n, r] a[r, k]; grid (N / BN, K / BK).

    fp32 factors are multiplied as three TF32 products, which keeps fp32's accuracy.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    at = n[:, None].to(tl.int64) * K + k[None, :]
    live = (n[:, None] < N) & (k[None, :] < K)
    weight = tl.load(base + at, mask=live, other=0.0)
    acc = tl.zeros([BN, BK], dtype=tl.float32)
    for r0 in tl.range(0, R, BR, num_stages=1):
        r = r0 + tl.arange(0, BR)
        left = tl.load(
            b + n[:, None].to(tl.int64) * R + r[None, :],
            mask=(n[:, None] < N) & (r[None, :] < R), other=0.0,
        )  # fmt: skip
        right = tl.load(
            a + r[:, None].to(tl.int64) * K + k[None, :],
            mask=(r[:, None] < R) & (k[None, :] < K), other=0.0,
        )  # fmt: skip
        acc = tl.dot(left, right, acc, input_precision="tf32x3")
    total = weight.to(tl.float32) + scale * acc
    tl.store(out + at, total.to(out.dtype.element_ty), mask=live)


def merge(base_NK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, out_NK: Tensor) -> None:
    """See kernels.lora.merge; base and copy are row-major."""
    N, K = base_NK.shape
    a, b = a_RK.contiguous(), b_NR.contiguous()
    if a.dtype != b.dtype or a.dtype not in FACTORS:
        a, b = a.float(), b.float()
    assert base_NK.is_contiguous(), "a base must be row-major"
    assert out_NK.is_contiguous(), "a copy must be row-major"
    assert a.shape == (b.shape[1], K), (a.shape, b.shape, base_NK.shape)
    assert out_NK.shape == (len(b), K), (out_NK.shape, b.shape)
    grid = (triton.cdiv(N, BN), triton.cdiv(K, BK))
    turn = 16 if len(a) <= 16 else BR
    merge_kernel[grid](base_NK, a, b, out_NK, float(scale), N, K, len(a), BN, BK, turn, num_warps=8)
