"""What tests of kernels in Triton's interpreter share.

The interpreter rounds to fp16 as a GPU does, so kernels are compared in fp32, for the values, and
in fp16, for where they round. Its bf16 is of no use: it cuts where it should round.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw with unit variance."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Fail unless both are the same within `tolerance`, absolute and relative."""
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def same(found: Tensor, expected: Tensor) -> None:
    """Fail unless both are the same: in fp16 nearly all bits, as two orders of summation allow."""
    assert found.dtype == expected.dtype
    if found.dtype == torch.float32:
        close(found, expected)
    else:
        close(found, expected, 2**-10)
        assert (found != expected).double().mean() < 0.01, "rounded elsewhere"
