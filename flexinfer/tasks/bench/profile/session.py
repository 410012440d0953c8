"""A torch.profiler session whose own log lines stay off the user's terminal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

NOISE = b"USDT:"
"""How lines begin that kineto writes as a session starts and stops, whatever its log level.

It ranks them above errors, so KINETO_LOG_LEVEL could silence them only with all errors."""


@contextmanager
def profiling(activities: Sequence[ProfilerActivity]) -> Iterator[profile]:
    """Profile the block; the figures are in the session once it has ended."""
    session = profile(activities=activities)
    with _without_noise():
        session.start()
    try:
        yield session
    finally:
        with _without_noise():
            session.stop()


@contextmanager
def _without_noise() -> Iterator[None]:
    """Hold back what the process writes to stderr; after the block pass on all but NOISE."""
    try:
        stderr = os.dup(2)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            kept = b"".join(line for line in held if not line.startswith(NOISE))
            if kept:
                os.write(2, kept)
