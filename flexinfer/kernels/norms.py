"""Root-mean-square norms, rounded exactly where Hugging Face rounds.

Shape letters: E the normed size; `...` any leading shape.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """Norm `x` [..., E] as Llama and Qwen3 do: fp32 inside, rounded before the weight."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight_E * wide.to(x.dtype)


def rms_norm_fp32(x: Tensor, weight_E: Tensor | None, eps: float) -> Tensor:
    """Norm `x` [..., E] as Gemma-4 does: fp32 up to and with the weight; None is no weight."""
    wide = x.float()
    wide = wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + eps, -0.5)
    return (wide if weight_E is None else wide * weight_E.float()).to(x.dtype)


def add_norm(
    residual: Tensor, delta: Tensor, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (residual + delta, its `rms_norm`), all [..., E] in the dtype of `residual`."""
    total = residual + delta
    return total, rms_norm(total, weight_E, eps)
