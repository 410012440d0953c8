"""The plain norms round exactly where Hugging Face's do."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from flexinfer.kernels.norms import add_norm, rms_norm, rms_norm_fp32

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZE = 96


def rows(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Draw rows of very different scale, one of them near zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, *shape, SIZE, generator=generator)
    return (x * torch.logspace(-4, 1, 5).view(5, *[1] * (x.dim() - 1))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", [LlamaRMSNorm, Qwen3RMSNorm])
def test_llama_and_qwen3(cls: type[torch.nn.Module], dtype: torch.dtype) -> None:
    x, weight = rows(0, dtype, 3), rows(1, torch.float32)[4].to(dtype)
    module = cls(SIZE, 1e-5).to(dtype)
    module.weight.data = weight
    assert torch.equal(rms_norm(x, weight, 1e-5), module(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaled", [True, False])
def test_gemma4(dtype: torch.dtype, scaled: bool) -> None:
    x, weight = rows(0, dtype, 3), rows(1, torch.float32)[4].to(dtype) if scaled else None
    module = Gemma4RMSNorm(SIZE, 1e-6, with_scale=scaled).to(dtype)
    if weight is not None:
        module.weight.data = weight
    assert torch.equal(rms_norm_fp32(x, weight, 1e-6), module(x))


def test_the_two_families_round_differently() -> None:
    x, weight = rows(0, torch.bfloat16), rows(1, torch.bfloat16)[4]
    assert not torch.equal(rms_norm(x, weight, 1e-6), rms_norm_fp32(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_norm_rounds_the_sum_first(dtype: torch.dtype) -> None:
    x, delta, weight = rows(0, dtype), rows(2, dtype), rows(1, dtype)[4]
    total, normed = add_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, x + delta)
    assert torch.equal(normed, rms_norm(x + delta, weight, 1e-5))
