"""What a back end reports, under the name of what it is done for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from flexinfer.config import Report

GENERATING = "generating"
"""What every back end calls its work, some in tokens, some in samples."""


class Work(NamedTuple):
    """What requests are served for, and how many problems they are."""

    name: str
    problems: int


class Stages:
    """Passes progress on to `report`; what is generated within `told_as` has a name of its own."""

    def __init__(self, report: Report) -> None:
        """Rename nothing yet."""
        self._report = report
        self._work: Work | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """See Report; named work is told in problems, each token its share of one."""
        if self._work is None or stage != GENERATING:
            self._report(stage, done, total)
            return
        name, problems = self._work
        self._report(name, done * problems // total if total else 0, problems)

    @contextmanager
    def told_as(self, name: str, problems: int) -> Iterator[None]:
        """Call what is generated meanwhile `name`, for so many `problems`."""
        self._work = Work(name, problems)
        try:
            yield
        finally:
            self._work = None
