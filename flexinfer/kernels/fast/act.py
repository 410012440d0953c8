"""Activations inside kernels, fp32 in and out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def silu(x):
    """x * sigmoid(x)."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def gelu_tanh(x):
    """The tanh approximation of GELU (Hendrycks and Gimpel 2016): tanh(t) = 1 - 2 / (1 + e^2t)."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x - x / (1.0 + tl.exp(2.0 * inner))


@triton.jit
def capped(x, CAP: tl.constexpr, dtype: tl.constexpr):
    """CAP * tanh(x / CAP), every step rounded to `dtype` as torch rounds it."""
    x = (x.to(dtype).to(tl.float32) / CAP).to(dtype).to(tl.float32)
    tanh = (1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))).to(dtype).to(tl.float32)
    return tanh * CAP
