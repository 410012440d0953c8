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


def narrowed(
    rows: Rows, least: Sequence[str], width: int | None
) -> tuple[list[list[str]], list[str]]:
    """Return rows that fit `width` without some columns, and the names of those.

    The first names of `least` are left out first, and no more than it takes. Where leaving out all
    of them is not enough, none is.
    """
    left, out = [[*row] for row in rows], list[str]()
    if width is None:
        return left, out
    for name in (None, *(name for name in least if name in rows[0])):
        if name is not None:
            at = left[0].index(name)
            left = [[*row[:at], *row[at + 1 :]] for row in left]
            out.append(name)
        if max(map(len, aligned(left))) <= width:
            return left, out
    return [[*row] for row in rows], []


def markdown(rows: Rows, words: int = 0) -> list[str]:
    """Return the lines of a Markdown table."""
    head, *rest = rows
    rule = [":---" if i < words else "---:" for i in range(len(head))]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *rest)]


def number(value: float | None, digits: int) -> str:
    """Format a figure; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
