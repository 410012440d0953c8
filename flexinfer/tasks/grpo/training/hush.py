"""Keeps libraries from telling users what only their callers can change."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

CPU_KERNELS = "bitsandbytes.backends.cpu.ops"
"""Warns on import, which PEFT does, of a CPU kernel for 4-bit that nobody asked for."""

CHECKPOINTS = "transformers.trainer_utils"
"""Warns of a --save-steps other than the checkpoint's, which a resumed run may choose anew.

Without that option it follows --max-steps, so that it differs wherever a run is made longer.
"""
OTHER_STEPS = "do not match the ones in the `trainer_state.json`"


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a line is to be told."""
    return OTHER_STEPS not in record.getMessage()


@contextmanager
def hushed() -> Iterator[None]:
    """Ignore deprecations inside transformers and TRL, and what concerns nobody, meanwhile."""
    logger = logging.getLogger(CPU_KERNELS)
    before, checkpoints = logger.level, logging.getLogger(CHECKPOINTS)
    logger.setLevel(logging.ERROR)
    checkpoints.addFilter(_is_news)
    try:
        with warnings.catch_warnings():
            # PEFT looks for the base model's vocabulary, which is nowhere for random weights
            warnings.filterwarnings("ignore", message="Could not find a config file in")
            warnings.filterwarnings("ignore", message="Unable to fetch remote file")
            for library in ("transformers", "trl"):
                warnings.filterwarnings("ignore", category=FutureWarning, module=library)
            yield
    finally:
        checkpoints.removeFilter(_is_news)
        logger.setLevel(before)
