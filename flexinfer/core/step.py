"""What the scheduler hands to the engine: a step, made of prefill chunks or of decode rows."""

from __future__ import annotations

from typing import NamedTuple

from flexinfer.core.pages import PageCopy, PageWrite
from flexinfer.core.sequence import Sequence


class Chunk(NamedTuple):
    """The positions [start, end) of one sequence, to prefill now.

    `sampled`: the chunk ends with the last known token, so its last row's logits are sampled.
    """

    sequence: Sequence
    start: int
    end: int
    sampled: bool

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids at [start, end)."""
        return self.sequence.token_ids(self.start, self.end)


def chunk_end(sequence: Sequence, left: int, tile: int | None) -> int:
    """Return up to where a sequence is prefilled now, with `left` tokens to spend.

    With a `tile` it is a multiple of it, or the last known token, which is left to decode.
    """
    end = min(sequence.length, sequence.computed + left)
    if tile is None:
        return end
    return sequence.length - 1 if end >= sequence.length - 1 else end - end % tile


class Step(NamedTuple):
    """What one launch computes: prefill chunks or decode rows, never both.

    A decode row computes the KV of position `sequence.computed - 1` (counted when the step was
    made) and samples the token after it. Page writes, then copies, come before the computation, and
    so do `entries`: sequences that will decode though the device did not sample their last token.
    """

    chunks: tuple[Chunk, ...]
    decode: tuple[Sequence, ...]
    page_writes: tuple[PageWrite, ...]
    page_copies: tuple[PageCopy, ...]
    entries: tuple[Sequence, ...] = ()
