"""Text of a sample while it grows: whole characters only, and never a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

HALF = "\ufffd"


class Decoder(Protocol):
    """The part of a tokenizer that a stream of text needs."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        ...


class TextStream:
    """Turns the tokens of one sample into text, piece by piece.

    A piece is held back while it ends within a character or with what may become a stop string.
    Only the tokens since the last whole piece are decoded again, beside the ones before them, since
    a token's text may depend on its left neighbour (the way of text-generation-inference).
    """

    def __init__(
        self,
        tokenizer: Decoder,
        stops: Sequence[str],
        end_ids: Collection[int],
        write: Callable[[str], None],
    ) -> None:
        """Pass pieces to `write`; `end_ids` have no text."""
        self._tokenizer, self._stops, self._end_ids, self._write = tokenizer, stops, end_ids, write
        self._ids: list[int] = []
        self._start = self._read = 0
        self._held = self._written = ""

    def add(self, token: int) -> None:
        """Take one more token."""
        if token in self._end_ids:
            return
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._read])
        after = self._decode(self._ids[self._start :])
        if len(after) <= len(before) or after.endswith(HALF):
            return
        self._start, self._read = self._read, len(self._ids)
        text = self._held + after[len(before) :]
        keep = _may_become(text, self._stops)
        self._held = text[len(text) - keep :]
        self._pass(text[: len(text) - keep])

    def finish(self, text: str) -> None:
        """Write what is missing of the whole `text`; begin a new line where it differs."""
        if text.startswith(self._written):
            self._pass(text[len(self._written) :])
        else:
            self._pass("\n" + text)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _pass(self, text: str) -> None:
        if text:
            self._written += text
            self._write(text)


def _may_become(text: str, stops: Sequence[str]) -> int:
    """Return how many last characters of `text` must wait, for they hold or may begin a stop."""
    found = [text.index(stop) for stop in stops if stop in text]
    if found:
        return len(text) - min(found)
    longest = min(len(text), max(map(len, stops), default=0))
    return next(
        (n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0
    )
