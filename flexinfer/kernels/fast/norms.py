"""Adding split-K partial sums, the residual and the norm after it: one kernel, one row a block.

Rounded where the plain forms round (kernels/norms.py): the sum of partials as a projection's
output, then the residual, then the norm. Shape letters: T rows, E hidden size, S splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next


@triton.jit
def partial_sum(p, row, rows, c, mask, E: tl.constexpr, SPLIT: tl.constexpr, dtype: tl.constexpr):
    """Return row `row` of a projection in fp32, rounded to `dtype`; `p` is [SPLIT, rows, E]."""
    total = tl.load(p + row * E + c, mask=mask, other=0.0).to(tl.float32)
    for s in tl.static_range(1, SPLIT):
        total += tl.load(p + (s * rows + row) * E + c, mask=mask, other=0.0).to(tl.float32)
    return total.to(dtype).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def add_norm_kernel(
    residual, delta, weight, out_residual, out_normed, rows,
    E: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr, EPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """residual + delta, then its RMS norm times `weight` (rounded before it); grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < E
    dtype: tl.constexpr = residual.dtype.element_ty
    w = tl.load(weight + c, mask=mask, other=0.0).to(tl.float32)
    await_inputs(PDL)
    release_next(PDL)
    total = tl.load(residual + row * E + c, mask=mask, other=0.0).to(tl.float32)
    total += partial_sum(delta, row, rows, c, mask, E, SPLIT, dtype)
    total = total.to(dtype)
    tl.store(out_residual + row * E + c, total, mask=mask)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / E + EPS)
    normed = (wide * scale).to(dtype).to(tl.float32) * w
    tl.store(out_normed + row * E + c, normed.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def post_norm_kernel(
    residual, delta, post, after, scalar, out_residual, out_normed, rows,
    E: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr, EPS: tl.constexpr,
    SCALED: tl.constexpr, NORMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """r = (residual + norm(delta) * post) * scalar, then norm(r) * after; grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < E
    dtype: tl.constexpr = residual.dtype.element_ty
    w = tl.load(post + c, mask=mask, other=0.0).to(tl.float32)
    w_after = w
    if NORMED:
        w_after = tl.load(after + c, mask=mask, other=0.0).to(tl.float32)
    await_inputs(PDL)
    release_next(PDL)
    old = tl.load(residual + row * E + c, mask=mask, other=0.0).to(tl.float32)
    wide = partial_sum(delta, row, rows, c, mask, E, SPLIT, dtype)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / E + EPS)
    wide = (wide * scale * w).to(dtype).to(tl.float32)
    total = (old + wide).to(dtype)
    if SCALED:
        total = (total.to(tl.float32) * tl.load(scalar).to(tl.float32)).to(dtype)
    tl.store(out_residual + row * E + c, total, mask=mask)
    if NORMED:
        wide = total.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / E + EPS)
        tl.store(out_normed + row * E + c, (wide * scale * w_after).to(dtype), mask=mask)


def splits_of(delta: Tensor) -> int:
    """Return the number of partial sums that a projection's result consists of."""
    return delta.shape[0] if delta.dim() == 3 else 1


def add_norm(
    residual_TE: Tensor, delta: Tensor, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (residual + delta, its RMS norm); `delta` is [T, E] or fp32 partial sums [S, T, E]."""
    rows, E = residual_TE.shape
    out, normed = torch.empty_like(residual_TE), torch.empty_like(residual_TE)
    pdl = dependent(residual_TE, rows)
    add_norm_kernel[(rows,)](
        residual_TE, delta, weight_E, out, normed, rows, E, triton.next_power_of_2(E),
        splits_of(delta), eps, pdl, num_warps=16 if E > 1024 else 4, launch_pdl=pdl,
    )  # fmt: skip
    return out, normed


def post_norm(
    residual_TE: Tensor,
    delta: Tensor,
    post_E: Tensor,
    after_E: Tensor | None,
    scalar: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return (residual + norm(delta) * post, times `scalar`) and its norm times `after`.

    Without `after` the second is the first. `delta` is [T, E] or fp32 partial sums [S, T, E].
    """
    rows, E = residual_TE.shape
    pdl = dependent(residual_TE, rows)
    out = torch.empty_like(residual_TE)
    normed = out if after_E is None else torch.empty_like(residual_TE)
    post_norm_kernel[(rows,)](
        residual_TE, delta, post_E, post_E if after_E is None else after_E,
        post_E if scalar is None else scalar, out, normed, rows, E, triton.next_power_of_2(E),
        splits_of(delta), eps, scalar is not None, after_E is not None, pdl,
        num_warps=16 if E > 1024 else 4, launch_pdl=pdl,
    )  # fmt: skip
    return out, normed
