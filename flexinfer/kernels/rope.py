"""Rotary position embedding in the half-rotated layout, rounded where Hugging Face rounds.

Shape letters: T tokens, H heads, D head dim (D/2 frequencies).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rope(NamedTuple):
    """Cosines and sines of one step and one rope kind, [T, D] in the hidden dtype."""

    cos_TD: Tensor
    sin_TD: Tensor


def rope_tables(positions_T: Tensor, inv_freq: Tensor, factor: float, dtype: torch.dtype) -> Rope:
    """Compute the step's tables in fp32 from `inv_freq` [D/2], times `factor`, then cast."""
    angles = positions_T[:, None].float() * inv_freq
    angles = torch.cat((angles, angles), -1)
    return Rope((angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype))


def apply_rope(x_THD: Tensor, rope: Rope) -> Tensor:
    """Rotate every head of `x` [T, H, D] by the angles of its token."""
    low, high = x_THD.chunk(2, -1)
    turned = torch.cat((-high, low), -1)
    return x_THD * rope.cos_TD[:, None] + turned * rope.sin_TD[:, None]
