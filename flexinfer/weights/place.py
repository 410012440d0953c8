"""Where a model lies and in which precision: device and dtype, with the reason in one line."""

from __future__ import annotations

import torch

from flexinfer.config import Device, Dtype
from flexinfer.errors import EnvironmentUnfit


def device(wanted: Device) -> torch.device:
    """Return the device; raises EnvironmentUnfit where CUDA is asked for and absent."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise EnvironmentUnfit(
            "--device cuda: no CUDA device is usable here",
            hint="flexinfer doctor says why; --device cpu runs without one",
        )
    return torch.device("cuda" if wanted != "cpu" and present else "cpu")


def dtype(
    wanted: Dtype, device: torch.device, stored: torch.dtype | None
) -> tuple[torch.dtype, str]:
    """Return (dtype, notice): bfloat16 on CUDA, else the checkpoint's, halves widened to float32."""
    if wanted != "auto":
        return getattr(torch, wanted), f"dtype: {wanted} (as asked)"
    if device.type == "cuda":
        return torch.bfloat16, "dtype: bfloat16"
    if stored in (torch.bfloat16, torch.float16):
        return (
            torch.float32,
            f"dtype: float32 (the checkpoint is {stored}; halves are slow on a CPU)",
        )
    return torch.float32, "dtype: float32"
