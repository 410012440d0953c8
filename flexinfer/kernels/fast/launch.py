"""Programmatic dependent launch: a kernel's blocks start while the kernel before it drains.

A kernel launched with `launch_pdl` may start early; it must wait before it touches anything that an
earlier kernel wrote, or writes anything that one may still read. Each kernel here waits first, so
waiting is transitive along the stream. sm_90 and newer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Wait until every earlier kernel has finished and its writes are visible."""
    if PDL:
        gdc_wait()


@triton.jit
def release_next(PDL: tl.constexpr):
    """Let the next kernel's blocks start where there is room."""
    if PDL:
        gdc_launch_dependents()


def dependent(x: Tensor) -> bool:
    """Return whether kernels on the device of `x` are launched dependently."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
