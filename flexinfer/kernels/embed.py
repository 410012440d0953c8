"""Embeddings and what is derived from them once per step, rounded where Hugging Face rounds.

Shape letters: T tokens, E hidden size, V vocabulary, L layers, P per-layer input size.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.norms import rms_norm, rms_norm_fp32


def embed(
    tokens_T: Tensor, table_VE: Tensor, scale: float, weight_E: Tensor, eps: float, late: bool
) -> tuple[Tensor, Tensor]:
    """Return h = table[tokens] * scale and its norm times `weight`.

    `late`: the weight is applied before rounding (Gemma-4) instead of after it.
    """
    hidden = F.embedding(tokens_T, table_VE)
    hidden = hidden if scale == 1.0 else hidden * scale
    return hidden, (rms_norm_fp32 if late else rms_norm)(hidden, weight_E, eps)


def layer_inputs(
    tokens_T: Tensor,
    table: Tensor,
    context: Tensor,
    weight_P: Tensor,
    table_scale: float,
    context_scale: float,
    eps: float,
) -> Tensor:
    """Return Gemma's per-layer inputs [T, L, P]: table row and projected embedding, averaged.

    `table` is [V, L * P]; `context` [T, L * P] is the projected embedding, normed over P.
    """
    split = (tokens_T.shape[0], -1, weight_P.shape[0])
    token = (F.embedding(tokens_T, table) * table_scale).view(split)
    normed = rms_norm_fp32((context * context_scale).view(split), weight_P, eps)
    return (normed + token) * math.sqrt(0.5)
