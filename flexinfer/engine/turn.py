"""One call at a time on an engine, whatever thread it comes from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flexinfer.errors import UsageError


class Turn:
    """Who has the engine. Nobody waits for it: a call that meets another one is told so.

    A trainer that generates while it refreshes would not know which weights it rolled out from.
    """

    def __init__(self) -> None:
        """Nobody has it."""
        self._lock, self._whose = threading.Lock(), ""

    def check(self) -> None:
        """Raise UsageError while a call has the engine."""
        if self._lock.locked():
            raise self._taken()

    @contextmanager
    def of(self, whose: str) -> Iterator[None]:
        """Have the engine for a `stream` or a `refresh`; raises UsageError where another has it."""
        if not self._lock.acquire(blocking=False):
            raise self._taken()
        self._whose = whose
        try:
            yield
        finally:
            self._lock.release()

    def _taken(self) -> UsageError:
        """Return what to raise."""
        return UsageError(
            f"an engine serves one call at a time, and a {self._whose} of this one is open",
            hint="let it end first: read a stream to its end, or close it",
        )
