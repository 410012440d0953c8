"""Tiny models on a CUDA device, in shapes that its kernels take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.support.engines import OVERRIDES
from tests.support.tiny import FAMILIES

LIMITS: Mapping[str, Any] = {"max_batch_size": 8, "max_seq_length": 128, "page_size": 16}
"""What engines on CUDA have unless overridden: the kernels take no page of less than 16 tokens."""
WIDE: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "initializer_range": 0.15,
}


@cache
def tiny_on_cuda(family: str) -> PreTrainedModel:
    """Return the shared tiny model of a family on CUDA in fp32."""
    return FAMILIES[family](**OVERRIDES.get(family, {})).to("cuda")


@cache
def wide_on_cuda(family: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Return a model whose head dims (64, and 128 in Gemma's full layers) the own kernels take.

    Its weights are bf16 numbers in every dtype, so that models differ in arithmetic alone.
    """
    extra = {"global_head_dim": 128} if family == "gemma4" else {}
    model = FAMILIES[family](**OVERRIDES.get(family, {}) | WIDE | extra)
    return cast(cast(model, torch.bfloat16), dtype)


def cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Move a model to CUDA and to `dtype`; rope frequencies stay fp32, as when loading."""
    kept = {name: b.clone() for name, b in model.named_buffers() if "inv_freq" in name}
    model = model.to("cuda", dtype)
    for name, buffer in model.named_buffers():
        if name in kept:
            buffer.data = kept[name].to("cuda")
    return model
