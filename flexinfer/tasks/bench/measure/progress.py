"""What is told of a measurement while it runs, without disturbing what is measured."""

from __future__ import annotations

import time
from collections.abc import Callable

from flexinfer.config import Report

INTERVAL_S = 1.0


def duration(seconds: float) -> str:
    """Write an estimate in minutes and tens of seconds."""
    minutes, tens = divmod(max(1, round(seconds / 10)), 6)
    parts = [f"{minutes} min"] * bool(minutes) + [f"{10 * tens} s"] * bool(tens)
    return " ".join(parts)


class Once:
    """Notices to `tell`, each line once: the engines of a sweep have much in common."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Nothing has been said yet."""
        self._tell = tell
        self._said: set[str] = set()

    def __call__(self, *lines: str) -> None:
        """Say those that are new."""
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                self._tell(line)


class Progress:
    """A Report for an engine under measurement: says which call runs, seldom enough to cost none.

    An engine tells every step; drawing each of them would take time from the round that is timed.
    """

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        """Tell `report`; `clock` is in seconds."""
        self._report, self._clock = report, clock
        self._label, self._told = "", clock()

    def enter(self, label: str) -> None:
        """Begin the call `label`, and say so."""
        self._label, self._told = label, self._clock()
        self._report(label, 0, 0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Pass on what an engine says: at once where it has no count, else once a second."""
        if total and self._clock() - self._told < INTERVAL_S:
            return
        self._told = self._clock()
        self._report(f"{self._label}: {stage}" if self._label else stage, done, total)
