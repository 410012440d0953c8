"""From raw q, k, v projections to queries and stored keys and values, in one kernel.

Sums split-K partials, norms each head, rotates q and k, writes k and v to their pages. One block
does a few heads of one token. Rounded where the plain forms round (kernels/norms.py, rope.py):
fused multiply-adds are off, since they skip a rounding of the rotation.
Shape letters: T tokens, H query heads, G kv heads, D head dim, N pool rows, S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.fast.norms import splits_of
from flexinfer.kernels.heads import HeadNorms


@triton.jit
def _head(p, at, rows_stride, HALF: tl.constexpr, SPLIT: tl.constexpr, dtype: tl.constexpr):
    """Return both halves of heads in fp32, partials added and rounded; `at` is [HEADS, HALF]."""
    low = tl.load(p + at).to(tl.float32)
    high = tl.load(p + at + HALF).to(tl.float32)
    for s in tl.static_range(1, SPLIT):
        low += tl.load(p + at + s * rows_stride).to(tl.float32)
        high += tl.load(p + at + HALF + s * rows_stride).to(tl.float32)
    return low.to(dtype).to(tl.float32), high.to(dtype).to(tl.float32)


@triton.jit
def _normed(low, high, weight, d, HALF: tl.constexpr, EPS: tl.constexpr, WEIGHTED: tl.constexpr,
            LATE: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Return the RMS-normed head, in fp32 but rounded to `dtype`."""
    square = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    scale = tl.rsqrt(square / (2 * HALF) + EPS)[:, None]
    low, high = low * scale, high * scale
    if WEIGHTED:
        if not LATE:
            low, high = low.to(dtype).to(tl.float32), high.to(dtype).to(tl.float32)
        low = low * tl.load(weight + d).to(tl.float32)[None, :]
        high = high * tl.load(weight + HALF + d).to(tl.float32)[None, :]
    return low.to(dtype).to(tl.float32), high.to(dtype).to(tl.float32)


@triton.jit
def _rotated(low, high, cos, sin, dtype: tl.constexpr):
    """Return the head turned by the token's angles; products are rounded as torch rounds them."""
    a = (low * cos).to(dtype).to(tl.float32) - (high * sin).to(dtype).to(tl.float32)
    b = (high * cos).to(dtype).to(tl.float32) + (low * sin).to(dtype).to(tl.float32)
    return a.to(dtype), b.to(dtype)


@triton.jit
def _query(
    qkv, q_norm, q_out, c, s, t, block, stride,
    WIDTH: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    SPLIT: tl.constexpr, EPS: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """Norm and turn HEADS query heads of token `t`."""
    dtype: tl.constexpr = q_out.dtype.element_ty
    d = tl.arange(0, HALF)
    at = (block * HEADS + tl.arange(0, HEADS))[:, None] * (2 * HALF) + d[None, :]
    low, high = _head(qkv, t * WIDTH + at, stride, HALF, SPLIT, dtype)
    if NORM:
        low, high = _normed(low, high, q_norm, d, HALF, EPS, True, LATE, dtype)
    low, high = _rotated(low, high, c, s, dtype)
    tl.store(q_out + t * H * 2 * HALF + at, low)
    tl.store(q_out + t * H * 2 * HALF + at + HALF, high)


@triton.jit
def _key_value(
    qkv, k_norm, k_pool, v_pool, c, s, t, g, slot, stride,
    WIDTH: tl.constexpr, H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr,
    SPLIT: tl.constexpr, EPS: tl.constexpr, NORM: tl.constexpr, V_NORM: tl.constexpr,
    LATE: tl.constexpr, K_IS_V: tl.constexpr,
):  # fmt: skip
    """Norm, turn and store the key, norm and store the value, of kv head `g` of token `t`."""
    dtype: tl.constexpr = k_pool.dtype.element_ty
    d = tl.arange(0, HALF)
    at = t * WIDTH + (H + g) * 2 * HALF + d[None, :]
    low, high = _head(qkv, at, stride, HALF, SPLIT, dtype)
    if K_IS_V:
        v_low, v_high = low, high
    else:
        v_low, v_high = _head(qkv, at + G * 2 * HALF, stride, HALF, SPLIT, dtype)
    if NORM:
        low, high = _normed(low, high, k_norm, d, HALF, EPS, True, LATE, dtype)
    k_low, k_high = _rotated(low, high, c, s, dtype)
    if V_NORM:
        v_low, v_high = _normed(v_low, v_high, k_norm, d, HALF, EPS, False, LATE, dtype)
    to = slot * 2 * HALF + d[None, :]
    tl.store(k_pool + to, k_low)
    tl.store(k_pool + to + HALF, k_high)
    tl.store(v_pool + to, v_low.to(dtype))
    tl.store(v_pool + to + HALF, v_high.to(dtype))


@triton.jit(do_not_specialize=["rows"])
def rope_write_kernel(
    qkv, cos, sin, q_norm, k_norm, address, q_out, k_pool, v_pool, rows, pool_rows,
    WIDTH: tl.constexpr, H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    SPLIT: tl.constexpr, EPS: tl.constexpr, NORM: tl.constexpr, V_NORM: tl.constexpr,
    LATE: tl.constexpr, K_IS_V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (T, H / HEADS + G): the first blocks do queries, the rest a key and its value each."""
    t = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    d = tl.arange(0, HALF)
    await_inputs(PDL)
    release_next(PDL)
    c = tl.load(cos + t * 2 * HALF + d).to(tl.float32)[None, :]
    s = tl.load(sin + t * 2 * HALF + d).to(tl.float32)[None, :]
    stride = rows.to(tl.int64) * WIDTH
    if block < H // HEADS:
        _query(
            qkv, q_norm, q_out, c, s, t, block, stride, WIDTH, H, HALF, HEADS, SPLIT, EPS, NORM,
            LATE,
        )  # fmt: skip
    else:
        g = block - H // HEADS
        slot = g.to(tl.int64) * pool_rows + tl.load(address + t)
        _key_value(
            qkv, k_norm, k_pool, v_pool, c, s, t, g, slot, stride, WIDTH, H, G, HALF, SPLIT, EPS,
            NORM, V_NORM, LATE, K_IS_V,
        )  # fmt: skip


def rope_write(
    qkv: Tensor,
    heads: tuple[int, int, int],
    norms: HeadNorms,
    rope: tuple[Tensor, Tensor],
    pools: tuple[Tensor, Tensor] | None,
    address_T: Tensor,
    k_is_v: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Return queries [T, H, D]; store keys and values at `address` (int64 [T]) of the pools.

    `qkv` is [T, width] or fp32 partial sums [S, T, width] with columns q, k, v (no v where
    `k_is_v`; q alone where `pools` is None); `heads` is (H, G, D); `rope` is cos and sin [T, D].
    """
    H, G, D = heads
    T, width = qkv.shape[-2:]
    q_THD = torch.empty(T, H, D, dtype=dtype, device=qkv.device)
    k_pool, v_pool = pools if pools is not None else (q_THD, q_THD)
    step = next(n for n in (4, 2, 1) if H % n == 0)
    unit, pdl = rope[0], dependent(qkv, T)
    rope_write_kernel[(T, H // step + (G if pools is not None else 0))](
        qkv, *rope, unit if norms.q is None else norms.q, unit if norms.k is None else norms.k,
        address_T, q_THD, k_pool, v_pool, T, k_pool.shape[2], width, H, G, D // 2, step,
        splits_of(qkv), norms.eps, norms.q is not None, norms.v, norms.late, k_is_v,
        pdl, num_warps=4 if D > 128 else 2, enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return q_THD
