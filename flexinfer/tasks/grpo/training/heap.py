"""Keeps Python's garbage collector away from what lives as long as a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled_heap() -> Iterator[None]:
    """Have collections meanwhile look at nothing that exists now: libraries, model and engine.

    That is a million objects, and a full collection among them takes some tenths of a second; the
    graphs of a few micro-batches call for one. Whoever has frozen objects himself is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
