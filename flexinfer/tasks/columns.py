"""Rows of cells as text: aligned, as a list or as a Markdown table; the first row is the head.

The first `words` columns are words, which stand to the left; numbers stand to the right.
"""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows, words: int = 0) -> list[str]:
    """Return lines of equal columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *rest = (
        [cell.ljust(w) if i < words else cell.rjust(w) for i, (cell, w) in enumerate(pairs)]
        for pairs in (zip(row, widths, strict=True) for row in rows)
    )
    return ["  ".join(row).rstrip() for row in (head, ["-" * width for width in widths], *rest)]


def fitted(rows: Rows, words: int = 0, width: int | None = None) -> list[str]:
    """Return aligned columns, or where they exceed `width` a list of `name: value` for each row."""
    lines = aligned(rows, words)
    if width is None or max(map(len, lines)) <= width:
        return lines
    head, *rest = rows
    lists = [[f"{name}: {cell}" for name, cell in zip(head, row, strict=True)] for row in rest]
    return [line for number, one in enumerate(lists) for line in (*([""] if number else []), *one)]


def markdown(rows: Rows, words: int = 0) -> list[str]:
    """Return the lines of a Markdown table."""
    head, *rest = rows
    rule = [":---" if i < words else "---:" for i in range(len(head))]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *rest)]


def number(value: float | None, digits: int) -> str:
    """Format a figure; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
