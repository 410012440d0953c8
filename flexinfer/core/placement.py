"""Where the KV of each running sequence lies: its slot, its pages, and what its group keeps."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from flexinfer.core.pages import SCRATCH, PageCopy, PagePool, PageWrite
from flexinfer.core.sequence import Group, Sequence


class Placement:
    """Gives out slots and pages and keeps the page-table changes until a step takes them."""

    def __init__(self, pool: PagePool, n_slots: int) -> None:
        """Hand out the slots [0, n_slots), lowest first, and the pages of `pool`."""
        self.pool = pool
        self._slots = list(range(n_slots))
        heapify(self._slots)
        self._keeping: list[Group] = []
        self._writes: list[PageWrite] = []
        self._copies: list[PageCopy] = []

    @property
    def free_slots(self) -> int:
        """Slots without a sequence."""
        return len(self._slots)

    def cost(self, sequence: Sequence) -> int:
        """Free pages that `place` would take."""
        group = sequence.group
        full = group.shared // self.pool.page_size if group.pages else 0
        return self.pool.pages_for(sequence.length) - full

    def place(self, sequence: Sequence) -> None:
        """Give a slot and the pages of all known tokens; what the group keeps is not recomputed.

        Full pages of the group are shared, its last, partly filled page is copied.
        """
        assert sequence.slot is None, "a sequence is placed twice"
        assert not sequence.pages, "a waiting sequence holds pages"
        sequence.slot = heappop(self._slots)
        if sequence.group.pages:
            self._place_prefix(sequence)
        while len(sequence.pages) < self.pool.pages_for(sequence.length):
            self._append(sequence, self.pool.acquire())

    def _place_prefix(self, sequence: Sequence) -> None:
        """Begin the pages with those of the group."""
        group = sequence.group
        full, partial = divmod(group.shared, self.pool.page_size)
        for page in group.pages[:full]:
            self.pool.share(page)
            self._append(sequence, page)
        if partial:
            self._append(sequence, self.pool.acquire())
            self._copies.append(PageCopy(group.pages[full], sequence.pages[full], partial))
        sequence.computed = group.shared

    def _append(self, sequence: Sequence, page: int) -> None:
        """Put `page` into the next column of the sequence's row of the page table."""
        assert sequence.slot is not None, "a sequence without a slot gets a page"
        self._writes.append(PageWrite(sequence.slot, len(sequence.pages), page))
        sequence.pages.append(page)

    def extend(self, sequence: Sequence) -> None:
        """Make sure that the last known position has a page."""
        if self.pool.pages_for(sequence.length) > len(sequence.pages):
            self._append(sequence, self.pool.acquire())

    def check_writable(self, sequence: Sequence, start: int, end: int) -> None:
        """Assert that nobody else reads what KV of [start, end) is about to be written over.

        The only other holder may be the group, keeping the leader's last page: it reads the
        positions below `group.shared` of it, and the leader writes those above.
        """
        group, size = sequence.group, self.pool.page_size
        kept = group.pages[-1] if group.pages and start >= group.shared else SCRATCH
        for page in sequence.pages[start // size : (end - 1) // size + 1]:
            assert page != SCRATCH, "a sequence holds the scratch page"
            assert self.pool.references(page) <= 1 + (page == kept), f"page {page} is shared"

    def clear(self, sequence: Sequence) -> None:
        """Take back slot and pages; nothing of the sequence counts as computed any more."""
        assert sequence.slot is not None, "a sequence without a slot is cleared"
        heappush(self._slots, sequence.slot)
        for page in sequence.pages:
            self.pool.release(page)
        sequence.slot, sequence.pages, sequence.computed = None, [], 0

    def keep(self, group: Group, pages: list[int]) -> None:
        """Let the group hold its prompt's pages, the first of `pages`, beside the leader."""
        group.pages = pages[: self.pool.pages_for(group.shared)]
        for page in group.pages:
            self.pool.share(page)
        self._keeping.append(group)

    def drop(self, group: Group) -> None:
        """Let go of what a group keeps, if anything; later samples prefill the prompt again."""
        for page in group.pages:
            self.pool.release(page)
        if group.pages:
            self._keeping.remove(group)
        group.pages = []

    def drop_newest(self) -> None:
        """Let go of what the group that began to keep last keeps."""
        self.drop(self._keeping[-1])

    def take_changes(self) -> tuple[tuple[PageWrite, ...], tuple[PageCopy, ...]]:
        """Hand over the changes since the last call, in order."""
        changes = tuple(self._writes), tuple(self._copies)
        self._writes, self._copies = [], []
        return changes
