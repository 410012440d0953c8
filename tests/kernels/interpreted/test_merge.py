"""The merge of an adapter in one kernel is the plain form's, for any shape, layout and dtype.

Shape letters: N outputs, K inputs, R ranks.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexinfer.kernels import lora
from flexinfer.kernels.fast.lora.merge import BK, BN, merge
from tests.support.triton_interpreter import DTYPES, close, normal

SCALE = 1.75


def factors(N: int, K: int, R: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return A [R, K] and B [N, R]."""
    return normal(R, K, seed=1, dtype=dtype), (normal(N, R, seed=2) * 0.2).to(dtype)


def check(base: Tensor, a: Tensor, b: Tensor, scale: float = SCALE) -> None:
    """Fail unless the copy is the plain form's, within an fp32 sum's order or a unit of fp16."""
    found, expected = torch.empty_like(base), torch.empty_like(base)
    merge(base, a, b, scale, found)
    lora.merge(base, a, b, scale, expected)
    assert not torch.equal(expected, base)
    if base.dtype == torch.float32:
        close(found, expected)
    else:
        close(found, expected, 2**-10)
        assert (found != expected).double().mean() < 0.001, "rounded elsewhere"


@pytest.mark.parametrize("rank", [1, 8, 16, 17, 32, 40, 64, 100])
def test_ranks(rank: int) -> None:
    check(normal(BN, BK), *factors(BN, BK, rank))


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (48, 96), (2 * BN + 5, 2 * BK + 7)])
def test_shapes_that_no_block_divides(outputs: int, inputs: int) -> None:
    check(normal(outputs, inputs), *factors(outputs, inputs, 8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("master", DTYPES)
def test_masters_of_another_dtype_than_the_base(master: torch.dtype, dtype: torch.dtype) -> None:
    """Both orders: what a trainer keeps in fp32 beside a 16-bit base, and the reverse."""
    check(normal(BN, BK, dtype=dtype), *factors(BN, BK, 24, master))


@pytest.mark.parametrize(("of_a", "of_b"), [(0, 1), (1, 0)])
def test_factors_of_two_dtypes(of_a: int, of_b: int) -> None:
    a, b = factors(BN, BK, 8)
    check(normal(BN, BK, dtype=torch.float16), a.to(DTYPES[of_a]), b.to(DTYPES[of_b]))


def test_fp64_factors() -> None:
    check(normal(BN, BK), *factors(BN, BK, 8, torch.float64))


def test_factors_in_any_layout() -> None:
    """Transposed, strided, rows of a larger tensor; and parameters that want gradients."""
    a, b = factors(BN, BK, 24)
    base = normal(BN, BK)
    check(base, a.t().contiguous().t(), b.t().contiguous().t())
    check(base, a.repeat(1, 2)[:, :BK], b.repeat(1, 3)[:, 24:48])
    check(base, a[::2], b[:, ::2])
    with torch.no_grad():
        check(base, torch.nn.Parameter(a), torch.nn.Parameter(b))


def test_rows_of_a_packed_buffer_and_no_others() -> None:
    """Members of a group lie in one buffer, in the base as in the copy."""
    bases, copies = normal(3 * 40, 72), torch.full((3 * 40, 72), 7.0)
    a, b = factors(40, 72, 8)
    expected = copies.clone()
    merge(bases[40:80], a, b, SCALE, copies[40:80])
    lora.merge(bases[40:80], a, b, SCALE, expected[40:80])
    close(copies, expected)


@pytest.mark.parametrize("scale", [1, 1.0, -0.5, 2])
def test_scales(scale: float) -> None:
    check(normal(BN, BK), *factors(BN, BK, 8), scale)


def test_an_adapter_of_zeros_copies_the_base() -> None:
    """Every bit of it."""
    base, (a, b) = normal(BN, BK, dtype=torch.float16), factors(BN, BK, 8, torch.float16)
    copy = torch.empty_like(base)
    merge(base, a, b * 0, SCALE, copy)
    assert torch.equal(copy, base)


def test_a_base_or_copy_in_columns_is_refused() -> None:
    a, b = factors(BN, BK, 8)
    rows, columns = normal(BN, BK), normal(BK, BN).t()
    for base, copy in ((columns, rows), (rows, columns), (rows, normal(BN + 1, BK))):
        with pytest.raises(AssertionError):
            merge(base, a, b, SCALE, copy)
