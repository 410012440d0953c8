"""Keeps libraries from telling users what only their callers can change."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

CPU_KERNELS = "bitsandbytes.backends.cpu.ops"
"""Warns on import, which PEFT does, of a CPU kernel for 4-bit that nobody asked for."""


@contextmanager
def hushed() -> Iterator[None]:
    """Ignore deprecations inside transformers and TRL, and what concerns nobody, meanwhile."""
    logger = logging.getLogger(CPU_KERNELS)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # PEFT looks for the base model's vocabulary, which is nowhere for random weights
            warnings.filterwarnings("ignore", message="Could not find a config file in")
            warnings.filterwarnings("ignore", message="Unable to fetch remote file")
            for library in ("transformers", "trl"):
                warnings.filterwarnings("ignore", category=FutureWarning, module=library)
            yield
    finally:
        logger.setLevel(before)
