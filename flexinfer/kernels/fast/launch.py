"""How kernels are launched: dependent on the one before, and with how much shared memory beside L1.

Programmatic dependent launch: a kernel's blocks start while the kernel before it drains. A kernel
launched with `launch_pdl` may start early; it must wait before it touches anything that an earlier
kernel wrote, or writes anything that one may still read. Each kernel here waits first, so waiting
is transitive along the stream. sm_90 and newer.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

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


DEPENDENT_ROWS = 64
"""Up to how many rows dependent launch is used: beyond them most products are cuBLAS's, which do
not take part, and a dependent kernel between two of those starts later than a plain one."""


def dependent(x: Tensor, rows: int) -> bool:
    """Return whether the kernels of a step of `rows` rows on the device of `x` start early."""
    on_device = x.is_cuda and rows <= DEPENDENT_ROWS
    return on_device and torch.cuda.get_device_capability(x.device) >= (9, 0)


CARVEOUT = 9
"""The number of CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT in the CUDA driver API."""
SHARED_PERCENT = 72
"""What is asked for: room for the blocks of any product here, the rest stays L1."""


def ask_shared(launched: Any) -> None:
    """Have a kernel that uses little shared memory leave more to those that follow it early.

    Left to itself, the driver gives nearly all of it to L1 while such a kernel runs, and the blocks
    of a dependent kernel that start meanwhile find no room: worth asking for between activations,
    whose blocks are on every multiprocessor, and the 4-bit product that reads them (on an H200 half
    of that product's time at 16 rows). `launched` is what a launch returned: the compiled kernel,
    None where it was interpreted. It holds from the next launch on, so a kernel must have run
    before a graph captures it. The driver may not take it.
    """
    if launched is not None:
        _prefer_shared(launched.function)


@cache
def _prefer_shared(function: int) -> None:
    """State the preference once for a function of the CUDA driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    error = driver.cuFuncSetAttribute(ctypes.c_void_p(function), CARVEOUT, SHARED_PERCENT)
    assert error == 0, f"cuFuncSetAttribute: CUDA driver error {error}"
