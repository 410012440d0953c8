"""The pool of KV pages: who holds which page, counted, without a tensor in sight."""

from __future__ import annotations

from typing import NamedTuple

SCRATCH = 0
"""The page that padding rows write to; it is never handed out."""


class PageWrite(NamedTuple):
    """An entry of the page table that changed: `page_table[slot, column] = page`."""

    slot: int
    column: int
    page: int


class PageCopy(NamedTuple):
    """A page whose K and V go to another page, in every cache, before the step's computation.

    Only its first `tokens` positions do: what its holder writes behind them is not to be shared.
    """

    source: int
    target: int
    tokens: int


class PagePool:
    """Hands out pages of `page_size` tokens and takes a page back when its last holder lets go."""

    def __init__(self, n_pages: int, page_size: int) -> None:
        """Count `n_pages` pages in all; page 0 is scratch, so `n_pages - 1` can be held."""
        assert n_pages > 1, n_pages
        assert page_size > 0, page_size
        self.n_pages = n_pages
        self.page_size = page_size
        self.reset()

    def reset(self) -> None:
        """Take every page back from whoever holds it."""
        self._references = [0] * self.n_pages
        self._free = list(range(self.n_pages - 1, SCRATCH, -1))

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def pages_for(self, n_tokens: int) -> int:
        """Pages that hold `n_tokens` tokens of one sequence."""
        return -(-n_tokens // self.page_size)

    def references(self, page: int) -> int:
        """Holders of `page`."""
        return self._references[page]

    def acquire(self) -> int:
        """Take a free page; the caller is its only holder."""
        assert self._free, "no page is free"
        page = self._free.pop()
        self._references[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a holder to a page that is held."""
        assert self._references[page] > 0, f"page {page} is shared but free"
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Let go of a page; without holders it is free again."""
        assert self._references[page] > 0, f"page {page} is released twice"
        self._references[page] -= 1
        if not self._references[page]:
            self._free.append(page)
