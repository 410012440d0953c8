"""Which back end and kernel options: pure functions of what was asked for and what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flexinfer.errors import EnvironmentUnfit, UsageError

TRITON_HEAD_DIMS = (64, 128, 256, 512)
"""Head dims that the own decode kernel is compiled and tested for."""


class Choice(NamedTuple):
    """A decision and the reason that is told to the user."""

    name: str
    reason: str


def triton_obstacle(
    device_type: str,
    capability: tuple[int, int],
    head_dims: Iterable[int],
    dtype_bytes: int,
    installed: bool,
) -> str | None:
    """Return why the own Triton kernels cannot serve a model on a device, or None if they can."""
    if device_type != "cuda":
        return "it needs a CUDA device"
    if not installed:
        return "the package triton is not installed"
    if capability < (8, 0):
        return f"it needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
    odd = [dim for dim in head_dims if dim not in TRITON_HEAD_DIMS]
    if odd:
        return f"head_dim {odd[0]} is not one of {', '.join(map(str, TRITON_HEAD_DIMS))}"
    return None if dtype_bytes == 2 else "it needs bfloat16 or float16"


def choose_attention(
    wanted: str,
    device_type: str,
    compiler: str | None,
    obstacle: str | None,
    tuned: bool = False,
) -> Choice:
    """Choose `triton`, `flex` or `dense`.

    `compiler` is the path of a C++ compiler (flex on a CPU needs it), `obstacle` what
    `triton_obstacle` says, `tuned` that kernel options were given, which ask for flex. Raises
    EnvironmentUnfit where a forced back end cannot be had, UsageError where two are asked for.
    """
    if tuned and wanted not in ("auto", "flex"):
        raise UsageError(
            f"kernel options are flex_attention's and do not go with --attention {wanted}",
            hint="use --attention flex",
        )
    if wanted == "triton" and obstacle is not None:
        raise EnvironmentUnfit(
            f"--attention triton cannot be had: {obstacle}", hint="use --attention auto"
        )
    if (tuned or wanted == "flex") and device_type == "cpu" and compiler is None:
        asked = "kernel options need flex_attention, which" if tuned else "--attention flex"
        raise EnvironmentUnfit(
            f"{asked} needs a C++ compiler on a CPU, and none was found",
            hint="install g++ or use --attention dense" + (" without them" if tuned else ""),
        )
    if wanted != "auto":
        return Choice(wanted, "asked for")
    if tuned:
        return Choice("flex", "kernel options are flex_attention's")
    if obstacle is None:
        return Choice("triton", "CUDA device with own kernels")
    if device_type == "cuda":
        return Choice("flex", f"own kernels: {obstacle}")
    return Choice("dense", "CPU: nothing to compile before the first token")


def decode_options(
    head_dim: int, page: int, on_cuda: bool, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return flex options for decode; torch's defaults on Hopper are 25-38 % slower.

    Tiles never exceed a page (the masked tail of a page would be read for nothing).
    """
    if not on_cuda:
        return dict(given)
    wide = head_dim > 256
    tuned = {
        "BACKEND": "TRITON_DECODE",
        "BLOCK_N": min(page, 16 if wide else 32),
        "num_warps": 4 if head_dim > 128 else 2,
        "num_stages": 3 if head_dim <= 128 else 2,
    }
    return tuned | dict(given)


def prefill_options(
    head_dim: int, page: int, on_cuda: bool, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return flex options for prefill, sized to fit 227 KB of shared memory at head_dim 512."""
    if not on_cuda:
        return dict(given)
    tuned = {
        "BLOCK_M": 128 if head_dim <= 128 else 64,
        "BLOCK_N": min(page, 64 if head_dim <= 256 else 32),
        "num_warps": 8 if head_dim <= 128 else 4,
        "num_stages": 3 if head_dim <= 128 else 1,
    }
    return tuned | dict(given)
