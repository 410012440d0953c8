"""How much memory a run took: of the device where there is one, else of the process."""

from __future__ import annotations

import gc
import sys
from typing import NamedTuple


class Peak(NamedTuple):
    """Largest memory in units of 10**9 bytes; `reserved_gb` only where an allocator tells.

    Nothing is known of another process.
    """

    allocated_gb: float | None
    reserved_gb: float | None


def reset_peak(device: str) -> None:
    """Begin a new measurement on a CUDA device; a process's peak cannot be reset.

    What was used before and is not any more goes back to the device first.
    """
    if device == "cuda":
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> Peak:
    """Return the CUDA allocator's peak since `reset_peak`, else the largest resident set so far."""
    if device == "cuda":
        import torch

        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return Peak(allocated / 1e9, reserved / 1e9)
    if device == "elsewhere":
        return Peak(None, None)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return Peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, None)
