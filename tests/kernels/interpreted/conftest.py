"""Own kernels in Triton's interpreter, in fp32 (its bf16 products are wrong).

Collected only where TRITON_INTERPRET was set before Triton was imported: in the sessions that
tests/kernels/test_fast_interpreter.py starts, or by hand with `TRITON_INTERPRET=1 pytest FOLDER`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _fresh_memory_is_nan() -> Iterator[None]:
    """Fill what `torch.empty` gives with NaN, so that a place a kernel forgets shows."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
