"""Imports of large packages, with the garbage collector kept out of their way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 50_000
"""New objects from which on the collector looks for garbage meanwhile; Python's default is 700."""


@contextmanager
def large_imports() -> Iterator[None]:
    """Have garbage looked for rarely while something as large as torch is imported.

    torch and transformers make half a million objects, which nearly all live as long as the
    process: going through them again and again takes a sixth of the imports' time. Where the
    collector is off or as rare already, be it by another thread's imports, nothing is changed.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < RARELY:
        yield
        return
    gc.set_threshold(RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
