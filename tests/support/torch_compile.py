"""A clean torch.compile state for one test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import torch
from torch._dynamo.utils import counters


@contextmanager
def fresh_dynamo() -> Iterator[MutableMapping[str, Counter[str]]]:
    """Forget compiled code before and after, and yield counters that begin at zero."""
    torch._dynamo.reset()
    counters.clear()
    try:
        yield counters
    finally:
        torch._dynamo.reset()
        counters.clear()
