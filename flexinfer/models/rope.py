"""Rope frequencies, computed by transformers itself from a model's rope parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexinfer.errors import UsageError

STATIC = ("default", "linear", "llama3", "proportional", "yarn")
"""Rope types whose frequencies do not depend on the length of the sequence."""


class RopeKind(NamedTuple):
    """One kind of rope: `inv_freq` fp32 [head_dim / 2] on the CPU, `factor` on cos and sin."""

    inv_freq: Tensor
    factor: float


def rope_kind(params: Mapping[str, Any], head_dim: int, max_positions: int) -> RopeKind:
    """Read one rope kind from flat `rope_parameters`; raise UsageError for a type not static."""
    kind = params.get("rope_type", "default")
    if kind not in STATIC:
        raise UsageError(f"rope type {kind!r} is not supported", hint="known: " + ", ".join(STATIC))
    if kind == "default":
        steps = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        return RopeKind(1.0 / (params["rope_theta"] ** steps), 1.0)
    inv_freq, factor = _scaled(kind, params, head_dim, max_positions)
    if inv_freq.numel() * 2 != head_dim:
        raise UsageError(
            f"rope type {kind!r} turns {inv_freq.numel() * 2} of {head_dim} dimensions; "
            "partial rotation is not supported"
        )
    return RopeKind(inv_freq.float(), float(factor))


def _scaled(
    kind: str, params: Mapping[str, Any], head_dim: int, max_positions: int
) -> tuple[Tensor, float]:
    """Ask transformers for a scaled kind, through a flat config that says only what rope needs."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rope_parameters=dict(params),
    )
    result: tuple[Tensor, float] = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return result
