"""Elementwise glue around products that have no fused form.

Shape letters: T rows, N outputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.act import capped, gelu_tanh, silu
from flexinfer.kernels.fast.launch import ask_shared, await_inputs, dependent, release_next

BLOCK = 1024


@triton.jit(do_not_specialize=["T"])
def act_mul_kernel(
    gate,
    up,
    out,
    T,
    N,
    gate_stride,
    up_stride,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
    SPLIT: tl.constexpr,
    BOTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[t, n] = act(gate[t, n]) * up[t, n], act rounded first; grid (T, N / BLOCK).

    With SPLIT > 1 gate, and with BOTH up too, is a sum of as many parts, T rows apart, rounded
    before it is used.
    """
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < N
    dtype: tl.constexpr = out.dtype.element_ty
    await_inputs(PDL)
    release_next(PDL)
    x = tl.load(gate + t * gate_stride + n, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(up + t * up_stride + n, mask=mask, other=0.0).to(tl.float32)
    for s in tl.static_range(1, SPLIT):
        row = s * T.to(tl.int64) + t
        x += tl.load(gate + row * gate_stride + n, mask=mask, other=0.0)
        if BOTH:
            y += tl.load(up + row * up_stride + n, mask=mask, other=0.0)
    x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
    act = (gelu_tanh(x) if GELU else silu(x)).to(dtype).to(tl.float32)
    value = act * y
    tl.store(out + t * N + n, value.to(dtype), mask=mask)


def act_mul(
    gate: Tensor, activation: str, up_TN: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Return act(gate) * up as [T, N] in `dtype`, that of `gate` by default.

    Without `up`, `gate` [T, 2N] holds both side by side. Instead of [T, ...] it may be fp32 partial
    sums [S, T, ...].
    """
    assert gate.stride(-1) == 1, "rows must be contiguous"
    if gate.dim() == 3:
        assert gate.stride(0) == gate.shape[1] * gate.stride(1), "splits must be adjacent"
    T = gate.shape[-2]
    N = gate.shape[-1] // 2 if up_TN is None else gate.shape[-1]
    up = gate[..., N:] if up_TN is None else up_TN
    out, pdl = gate.new_empty(T, N, dtype=dtype or gate.dtype), dependent(gate, T)
    parts = len(gate) if gate.dim() == 3 else 1
    launched = act_mul_kernel[(T, triton.cdiv(N, BLOCK))](
        gate, up, out, T, N, gate.stride(-2), up.stride(-2), BLOCK,
        activation == "gelu_pytorch_tanh", parts, up_TN is None, pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    if pdl:
        ask_shared(launched)
    return out


@triton.jit
def softcap_kernel(logits, total, BLOCK: tl.constexpr, CAP: tl.constexpr, PDL: tl.constexpr):
    """logits = CAP tanh(logits / CAP) in place, rounded as torch does; grid (total / BLOCK,)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < total
    await_inputs(PDL)
    release_next(PDL)
    x = tl.load(logits + at, mask=mask, other=0.0).to(tl.float32)
    dtype: tl.constexpr = logits.dtype.element_ty
    tl.store(logits + at, capped(x, CAP, dtype).to(dtype), mask=mask)


def softcap(logits: Tensor, cap: float) -> Tensor:
    """Return `logits`, overwritten with cap tanh(logits / cap)."""
    assert logits.is_contiguous(), "logits must be contiguous"
    grid = (triton.cdiv(logits.numel(), 4 * BLOCK),)
    pdl = dependent(logits, logits.shape[0])
    softcap_kernel[grid](logits, logits.numel(), 4 * BLOCK, cap, pdl, num_warps=4, launch_pdl=pdl)
    return logits
