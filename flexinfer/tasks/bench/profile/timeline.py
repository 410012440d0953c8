"""Arithmetic on what a device did when: busy time, gaps, and whose they are; all in nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

COPIES = ("Memcpy", "Memset")


class Span(NamedTuple):
    """A kernel or copy on the device over [start, end); kernels of a graph share one `launch`."""

    name: str
    start: int
    end: int
    launch: int

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy or fill rather than a kernel."""
        return self.name.startswith(COPIES)


class Laid(NamedTuple):
    """For each span, in order: what it adds to the busy time, and the idle time before it."""

    own: tuple[int, ...]
    gap: tuple[int, ...]

    @property
    def busy(self) -> int:
        """The union of all spans."""
        return sum(self.own)


def lay(spans: Sequence[Span]) -> Laid:
    """Lay spans, sorted by start, one after the other; where two overlap the earlier one counts.

    So a dependent kernel that starts early and waits has only the time after the wait.
    """
    own, gap = [], []
    reach = spans[0].start if spans else 0
    for span in spans:
        gap.append(max(span.start - reach, 0))
        own.append(max(span.end - max(span.start, reach), 0))
        reach = max(reach, span.end)
    return Laid(tuple(own), tuple(gap))


def split_at(spans: Sequence[Span], mark: str) -> list[list[Span]]:
    """Return the spans after each span whose name contains `mark`, up to the next such one."""
    parts: list[list[Span]] = []
    for span in spans:
        if mark in span.name:
            parts.append([])
        elif parts:
            parts[-1].append(span)
    return parts


def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces and arguments."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", bare)[0].strip().rsplit("::", 1)[-1] or name
