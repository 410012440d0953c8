"""Attention as its definition, one query and one key at a time, without pages or kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from flexinfer.attention.spec import LayerSpec


def attend(q_HD: Tensor, k_GSD: Tensor, v_GSD: Tensor, position: int, spec: LayerSpec) -> Tensor:
    """Return the attention [H, D] of the query at `position` over keys [0, S)."""
    first = 0 if spec.window is None else max(position - spec.window + 1, 0)
    ratio = spec.heads // spec.kv_heads
    k, v = (x[:, first : position + 1].repeat_interleave(ratio, 0) for x in (k_GSD, v_GSD))
    weights = torch.einsum("hd,hsd->hs", q_HD.double(), k.double()) * spec.scale
    return torch.einsum("hs,hsd->hd", weights.softmax(-1), v.double()).to(q_HD.dtype)
