"""The 4-bit leaf: bit for bit what bitsandbytes dequantises, and its products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flexinfer.kernels.nf4 import BLOCK, CODE, Nf4, stacked, unnested

bnb: Any = pytest.importorskip("bitsandbytes")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
N, K = 96, 512


def weight(dtype: torch.dtype, rows: int = N, inputs: int = K) -> Tensor:
    """Draw weights whose blocks differ in size by orders of magnitude."""
    generator = torch.Generator().manual_seed(rows + inputs)
    size = 10 ** torch.empty(rows, inputs // BLOCK).uniform_(-3, 1, generator=generator)
    return (torch.randn(rows, inputs, generator=generator) * size.repeat_interleave(BLOCK, 1)).to(
        dtype
    )


def quantised(dtype: torch.dtype, nested: bool, rows: int = N) -> tuple[Nf4, Tensor]:
    """Return a leaf and the matrix that bitsandbytes makes of the same bytes."""
    packed, state = bnb.functional.quantize_4bit(
        weight(dtype, rows), blocksize=BLOCK, compress_statistics=nested, quant_type="nf4"
    )
    absmax = state.absmax
    if nested:
        inner = state.state2
        absmax = unnested(absmax, inner.absmax, inner.code, state.offset, inner.blocksize)
    leaf = Nf4(packed.view(rows, K // 2), absmax.view(rows, -1), torch.tensor(CODE), dtype)
    return leaf, bnb.functional.dequantize_4bit(packed, state)


@dtypes
@pytest.mark.parametrize("nested", [False, True])
def test_weights_are_those_of_bitsandbytes_bit_for_bit(dtype: torch.dtype, nested: bool) -> None:
    leaf, expected = quantised(dtype, nested)
    assert leaf.weight().dtype == dtype
    assert leaf.absmax.dtype == torch.float32
    assert torch.equal(leaf.weight(), expected)
    assert len(leaf.packed.unique()) > 200, "nearly every pair of codes occurs"


def test_the_code_is_that_of_bitsandbytes() -> None:
    assert torch.equal(torch.tensor(CODE), bnb.functional.get_4bit_type("nf4", device="cpu"))


@dtypes
def test_products_are_those_of_the_dequantised_matrix(dtype: torch.dtype) -> None:
    leaf, matrix = quantised(dtype, nested=True)
    bias = torch.randn(N, generator=torch.Generator().manual_seed(3)).to(dtype)
    x = torch.randn(3, 5, K, generator=torch.Generator().manual_seed(4)).to(dtype)
    assert torch.equal(leaf(x), F.linear(x, matrix))
    assert torch.equal(leaf._replace(bias=bias)(x), F.linear(x, matrix, bias))
    assert leaf.rows == N


def test_a_wider_dtype_is_multiplied_in_and_left_again() -> None:
    """As Linear4bit with a compute dtype of its own does it."""
    leaf, matrix = quantised(torch.float32, nested=False)
    x = torch.randn(4, K, generator=torch.Generator().manual_seed(4)).bfloat16()
    found = leaf(x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, F.linear(x.float(), matrix).bfloat16())


@pytest.mark.parametrize("shared", [False, True])
def test_stacked_members_are_one_leaf(shared: bool) -> None:
    members = [quantised(torch.float32, True, rows)[0] for rows in (64, 32, 32)]
    members = [member._replace(bias=torch.randn(member.rows)) for member in members]
    buffer = torch.cat([member.packed for member in members]) if shared else None
    scales = torch.cat([member.absmax for member in members]) if shared else None
    bias = torch.cat([member.bias for member in members if member.bias is not None])
    whole = stacked(members, buffer, scales, bias)
    x = torch.randn(7, K, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(whole(x), torch.cat([member(x) for member in members], -1))
    assert (whole.packed is buffer) == (whole.absmax is scales) == shared
    assert whole.bias is bias


def test_a_linear4bit_gives_the_same() -> None:
    layer = bnb.nn.Linear4bit(K, N, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    layer.weight = bnb.nn.Params4bit(
        weight(torch.float32), requires_grad=False, quant_type="nf4", module=layer
    )
    layer.to("cpu")
    leaf, _ = quantised(torch.float32, nested=True)
    x = torch.randn(4, K, generator=torch.Generator().manual_seed(4), requires_grad=True)
    torch.testing.assert_close(leaf(x), layer(x))
    assert isinstance(layer, nn.Linear)
