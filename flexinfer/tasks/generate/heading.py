"""The line above a request's texts, where a person reads those of several requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flexinfer.tasks.generate.input import Item

WIDEST = 60
"""Characters of a prompt that a heading shows."""


def headings(items: Sequence[Item]) -> Mapping[str | int | None, str]:
    """Return the headings by id, each a line, none for a single request: its text needs no name.

    A heading is the id and how the prompt begins; of an id that repeats it is the id alone.
    """
    if len(items) < 2:
        return {}
    found: dict[str | int | None, str] = {}
    for item in items:
        named = "(no id)" if item.id is None else str(item.id)
        begins = "" if item.id is None or item.id in found else _beginning(item)
        found[item.id] = _one_line(f"--- {named}" + (f": {begins}" if begins else "")) + "\n"
    return found


def _beginning(item: Item) -> str:
    """Return how the text of a request begins, its last message's where it has several."""
    text = item.prompt or ""
    if item.messages:
        text = str(item.messages[-1]["content"])
    line = _one_line(text)
    return line if len(line) <= WIDEST else f"{line[:WIDEST].rstrip()} ..."


def _one_line(text: str) -> str:
    """Return text on one line, with nothing in it that steers a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
