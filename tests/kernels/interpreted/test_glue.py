"""Elementwise glue: activations, softcap, the per-layer gate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.fast.glue import BLOCK, act_mul, softcap
from flexinfer.kernels.fast.per_layer import input_gate
from flexinfer.kernels.mlp import gated
from tests.support.triton_interpreter import DTYPES, normal, same

dtypes = pytest.mark.parametrize("dtype", DTYPES)
activations = pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])


def wide(*shape: int, dtype: torch.dtype) -> Tensor:
    """Draw values; in fp32 from near zero to those whose exponential overflows.

    Near the ends torch itself cancels digits, so there fp16 says nothing about rounding.
    """
    if dtype == torch.float16:
        return normal(*shape, dtype=dtype)
    scale = torch.tensor([1e-4, 1e-2, 1.0, 10.0, 100.0])
    return normal(*shape) * scale.repeat(shape[-1] // 5 + 1)[: shape[-1]]


@dtypes
@activations
@pytest.mark.parametrize("size", [40, BLOCK, BLOCK + 24])
def test_act_mul(size: int, activation: str, dtype: torch.dtype) -> None:
    both = wide(3, 2 * size, dtype=dtype)
    same(act_mul(both, activation), gated(*both.chunk(2, 1), activation))


@dtypes
@activations
@pytest.mark.parametrize("parts", [1, 3])
def test_act_mul_of_partial_sums(parts: int, activation: str, dtype: torch.dtype) -> None:
    """They are added in order and rounded before they are used, as a product that is whole is."""
    sums = normal(parts, 5, 2 * 40) / parts
    both = sum(sums[1:], sums[0]).to(dtype)
    same(act_mul(sums, activation, dtype=dtype), gated(*both.chunk(2, 1), activation))
    up = normal(5, 80, seed=1, dtype=dtype)
    same(act_mul(sums, activation, up, dtype=dtype), gated(both, up, activation))


@dtypes
@activations
def test_act_mul_with_strided_factors(activation: str, dtype: torch.dtype) -> None:
    gate, up = wide(3, 48, dtype=dtype), normal(3, 4, 48, seed=1, dtype=dtype)[:, 2]
    same(act_mul(gate, activation, up), gated(gate, up, activation))


@dtypes
@pytest.mark.parametrize("size", [40, 4 * BLOCK + 8])
def test_softcap(size: int, dtype: torch.dtype) -> None:
    logits = wide(2, size, dtype=dtype) * 10
    expected = torch.tanh(logits / 30.0) * 30.0
    same(softcap(logits, 30.0), expected)


@activations
@pytest.mark.parametrize("rows", [1, 16, 19])
@pytest.mark.parametrize("inputs", [64, 192, 256])
def test_input_gate(inputs: int, rows: int, activation: str) -> None:
    x, gate = normal(rows, inputs), normal(32, inputs, seed=1) * 0.2
    extra = normal(rows, 3, 32, seed=2)[:, 1]
    same(input_gate(x, gate, extra, activation), gated(F.linear(x, gate), extra, activation))
