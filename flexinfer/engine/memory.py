"""How many KV pages: what the work needs, within what memory there is; and when it is not there."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from flexinfer.core.sizes import human
from flexinfer.errors import NotEnoughMemory

SHARE = 0.9
"""The part of free memory that the KV cache may take; the rest is for activations and graphs."""
COMPLAINTS = ("CUDA error: out of memory", "[CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What the driver, Triton and cuBLAS say where torch's allocator was not the one that failed."""


class PagePlan(NamedTuple):
    """`n_pages` includes the scratch page; `limited` says that memory, not work, set the number."""

    n_pages: int
    n_bytes: int
    limited: bool


def plan_pages(
    *, wanted: int, least: int, page_bytes: int, granted: int | None, available: int, reserve: int
) -> PagePlan:
    """Decide on `wanted` pages, fewer where memory is short, never fewer than `least`.

    All counts include the scratch page. `granted` is --kv-memory, `available` what the device has,
    `reserve` the bytes to leave for activations. Raises NotEnoughMemory with both figures.
    """
    if granted is not None and granted > available:
        raise NotEnoughMemory(
            f"--kv-memory asks for {human(granted)}, the device has {human(available)} available",
            hint="lower --kv-memory",
        )
    budget = granted if granted is not None else int((available - reserve) * SHARE)
    n_pages = min(wanted, max(budget, 0) // page_bytes)
    if n_pages < least:
        flag = "--kv-memory holds" if granted is not None else "free memory leaves room for"
        raise NotEnoughMemory(
            f"{flag} {human(max(budget, 0))} of KV cache; one sequence needs "
            f"{human(least * page_bytes)} ({least} pages)",
            hint="raise --kv-memory or lower --max-seq-length",
        )
    return PagePlan(n_pages, n_pages * page_bytes, n_pages < wanted)


@contextmanager
def memory_told(doing: str, hint: str) -> Iterator[None]:
    """Turn an allocation that fails within into NotEnoughMemory, with the figures torch gives.

    The frames that failed are emptied: the error would keep their tensors alive, and with them the
    memory that whoever goes on without this engine needs.
    """
    try:
        yield
    except RuntimeError as error:
        words = " ".join(str(error).split())
        known = isinstance(error, torch.OutOfMemoryError)
        if not known and not any(complaint in words for complaint in COMPLAINTS):
            raise
        traceback.clear_frames(error.__traceback__)
        figures = words.partition(" Including ")[0]
        raise NotEnoughMemory(f"{doing} ran out of memory: {figures}", hint=hint) from error
