"""GPU tests skip without a CUDA device, and fail instead where FLEXINFER_REQUIRE_GPU=1 is set."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    """Let a test run on CUDA only, and begin and end with nothing held by an earlier engine."""
    if not torch.cuda.is_available():
        if os.environ.get("FLEXINFER_REQUIRE_GPU") == "1":
            pytest.fail("FLEXINFER_REQUIRE_GPU=1, but there is no CUDA device")
        pytest.skip("no CUDA device")
    yield
    gc.collect()
    torch.cuda.empty_cache()
