"""Where a model lies and in which precision: device and dtype, with the reason in one line."""

from __future__ import annotations

import torch

from flexinfer.config import Device, Dtype
from flexinfer.core.host_memory import host_memory
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_GIB = 2**30


def choose_device(wanted: Device) -> tuple[torch.device, str]:
    """Return (device, notice); raises EnvironmentUnfit where CUDA is asked for and absent."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise EnvironmentUnfit(
            "--device cuda: there is no usable CUDA device",
            hint="`flexinfer doctor` says why; --device cpu runs without one",
        )
    if wanted == "cpu" or not present:
        why = "as asked" if wanted == "cpu" else "there is no CUDA device"
        return torch.device("cpu"), f"device: cpu ({why})"
    device = torch.device("cuda", torch.cuda.current_device())
    return device, f"device: {device} ({torch.cuda.get_device_name(device)})"


def choose_dtype(
    wanted: Dtype, device: torch.device, stored: torch.dtype | None
) -> tuple[torch.dtype, str]:
    """Return (dtype, notice): bfloat16 on CUDA; on the CPU float32, whatever half was stored."""
    if wanted != "auto":
        return _DTYPES[wanted], f"dtype: {wanted} (as asked)"
    if device.type == "cuda":
        return torch.bfloat16, "dtype: bfloat16 (the default on CUDA)"
    if stored in (torch.bfloat16, torch.float16):
        half = str(stored).removeprefix("torch.")
        return torch.float32, f"dtype: float32 (stored as {half}; half precision is slow on a CPU)"
    return torch.float32, "dtype: float32"


def require_memory(
    needed: int,
    device: torch.device,
    what: str,
    hint: str = "choose a smaller --model or a narrower --dtype",
) -> None:
    """Raise NotEnoughMemory where `needed` bytes of something do not fit into what is free."""
    free = available_bytes(device)
    if needed > free:
        raise NotEnoughMemory(
            f"{what} need {needed / _GIB:.1f} GiB, {device.type} has {free / _GIB:.1f} GiB free",
            hint=hint,
        )


def available_bytes(device: torch.device) -> int:
    """Return the bytes of `device` that can still be had."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return host_memory()
