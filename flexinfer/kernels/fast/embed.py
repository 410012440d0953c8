"""The ends of a step's start: embedding with its first norm, rope tables, per-layer inputs.

Rounded where the plain forms round. Shape letters: T tokens, E hidden size, D head dim, L layers,
P per-layer input size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next


@triton.jit
def embed_kernel(
    tokens, table, weight, out, out_normed,
    E: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr, EPS: tl.constexpr,
    LATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = table[token] * SCALE and its RMS norm times `weight`; grid (T,)."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < E
    dtype: tl.constexpr = out.dtype.element_ty
    await_inputs(PDL)
    release_next(PDL)
    row = tl.load(table + tl.load(tokens + t) * E + c, mask=mask, other=0.0).to(tl.float32)
    row = (row * SCALE).to(dtype).to(tl.float32)
    tl.store(out + t * E + c, row.to(dtype), mask=mask)
    wide = row * tl.rsqrt(tl.sum(row * row, 0) / E + EPS)
    if not LATE:
        wide = wide.to(dtype).to(tl.float32)
    w = tl.load(weight + c, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_normed + t * E + c, (wide * w).to(dtype), mask=mask)


@triton.jit
def rope_kernel(
    positions, inv_freq, cos, sin, FACTOR: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr
):
    """cos and sin of position * inv_freq, each half the same, times FACTOR; grid (T,)."""
    t = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF)
    await_inputs(PDL)
    release_next(PDL)
    angle = tl.load(positions + t).to(tl.float32) * tl.load(inv_freq + d)
    c = (tl.cos(angle) * FACTOR).to(cos.dtype.element_ty)
    s = (tl.sin(angle) * FACTOR).to(sin.dtype.element_ty)
    at = t * 2 * HALF + d
    tl.store(cos + at, c)
    tl.store(cos + at + HALF, c)
    tl.store(sin + at, s)
    tl.store(sin + at + HALF, s)


@triton.jit
def layer_inputs_kernel(
    tokens, table, context, weight, out,
    L: tl.constexpr, P: tl.constexpr, TABLE_SCALE: tl.constexpr, CONTEXT_SCALE: tl.constexpr,
    EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """(norm(context * CONTEXT_SCALE) * weight + table row * TABLE_SCALE) / sqrt 2; grid (T, L)."""
    t = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, P)
    at = tl.program_id(1) * P + p
    dtype: tl.constexpr = out.dtype.element_ty
    await_inputs(PDL)
    release_next(PDL)
    wide = tl.load(context + t * L * P + at).to(tl.float32) * CONTEXT_SCALE
    wide = wide.to(dtype).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / P + EPS)
    wide = (wide * scale * tl.load(weight + p).to(tl.float32)).to(dtype).to(tl.float32)
    token = tl.load(table + tl.load(tokens + t) * L * P + at).to(tl.float32) * TABLE_SCALE
    total = (wide + token.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    tl.store(out + t * L * P + at, (total * 0.7071067811865476).to(dtype))


def embed(
    tokens_T: Tensor, table: Tensor, scale: float, weight_E: Tensor, eps: float, late: bool
) -> tuple[Tensor, Tensor]:
    """Return table[tokens] * scale and its norm times `weight` (applied `late`: unrounded)."""
    T, E = tokens_T.shape[0], table.shape[1]
    out, normed, pdl = table.new_empty(T, E), table.new_empty(T, E), dependent(table, T)
    embed_kernel[(T,)](
        tokens_T, table, weight_E, out, normed, E, triton.next_power_of_2(E), scale, eps, late, pdl,
        num_warps=8 if E > 1024 else 4, enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return out, normed


def rope_tables(
    positions_T: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [T, D] from fp32 `inv_freq` [D / 2]."""
    shape = (positions_T.shape[0], 2 * inv_freq.shape[0])
    cos, sin = (torch.empty(shape, dtype=dtype, device=inv_freq.device) for _ in range(2))
    pdl = dependent(inv_freq, shape[0])
    rope_kernel[(shape[0],)](
        positions_T, inv_freq, cos, sin, factor, inv_freq.shape[0], pdl, num_warps=1,
        enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return cos, sin


def layer_inputs(
    tokens_T: Tensor,
    table: Tensor,
    context: Tensor,
    weight_P: Tensor,
    table_scale: float,
    context_scale: float,
    eps: float,
) -> Tensor:
    """Return Gemma's per-layer inputs [T, L, P]; `context` [T, L * P] is a projection."""
    T, width = context.shape
    P = weight_P.shape[0]
    out, pdl = context.new_empty(T, width // P, P), dependent(context, T)
    layer_inputs_kernel[(T, width // P)](
        tokens_T, table, context, weight_P, out, width // P, P, table_scale, context_scale, eps,
        pdl, num_warps=1, enable_fp_fusion=False, launch_pdl=pdl,
    )  # fmt: skip
    return out
