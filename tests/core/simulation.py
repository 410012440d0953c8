"""A device without arithmetic: its KV is (position, token), so each read can be checked exactly.

The engine of the simulation launches steps ahead of reading their tokens, as the real one does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, count

from flexinfer.core.pages import SCRATCH, PagePool
from flexinfer.core.scheduler import Scheduler
from flexinfer.core.sequence import Group, Sequence
from flexinfer.core.step import Step

Row = tuple[Sequence, int, int]
"""(sequence, position, token id) of one computed token."""


class Device:
    """Runs steps in launch order on a page table and a KV store, and checks each attended token."""

    def __init__(self, pool: PagePool, n_slots: int, max_seq_length: int) -> None:
        self.page_size = pool.page_size
        columns = range(pool.pages_for(max_seq_length))
        self.table = [[SCRATCH for _ in columns] for _ in range(n_slots)]
        self.store: list[list[tuple[int, int] | None]] = [
            [None] * pool.page_size for _ in range(pool.n_pages)
        ]
        self.last_token: dict[int, int] = {}
        self.truth: dict[Sequence, list[int]] = {}
        self.new_tokens = count(10**6)

    def run(self, step: Step) -> list[tuple[Sequence, int]]:
        """Compute a step; returns the tokens it samples."""
        self.change_pages(step)
        for sequence in step.entries:
            assert sequence.slot is not None
            truth = self.truth.setdefault(sequence, list(sequence.prompt))
            self.last_token[sequence.slot] = truth[-1]
        rows = list(chain(self.chunk_rows(step), self.decode_rows(step)))
        self.write(rows)
        for row in rows:
            self.check_attended(row)
        sampled = [c.sequence for c in step.chunks if c.sampled] + list(step.decode)
        return [(s, self.sample(s)) for s in sampled]

    def change_pages(self, step: Step) -> None:
        for slot, column, page in step.page_writes:
            assert page != SCRATCH
            self.table[slot][column] = page
        targets = {c.target for c in step.page_copies}
        assert len(targets) == len(step.page_copies)
        assert targets.isdisjoint(c.source for c in step.page_copies)
        for source, target, tokens in step.page_copies:
            self.store[target][:tokens] = self.store[source][:tokens]

    def chunk_rows(self, step: Step) -> Iterator[Row]:
        for chunk in step.chunks:
            truth = self.truth.setdefault(chunk.sequence, list(chunk.sequence.prompt))
            assert chunk.token_ids == tuple(truth[chunk.start : chunk.end])
            assert chunk.start < chunk.end <= len(truth)
            assert chunk.sampled == (chunk.end == len(truth))
            for position in range(chunk.start, chunk.end):
                yield chunk.sequence, position, truth[position]

    def decode_rows(self, step: Step) -> Iterator[Row]:
        for sequence in step.decode:
            position = sequence.computed - 1
            assert position == len(self.truth[sequence]) - 1
            assert sequence.slot is not None
            yield sequence, position, self.last_token[sequence.slot]

    def address(self, sequence: Sequence, position: int) -> tuple[int, int]:
        assert sequence.slot is not None
        return self.table[sequence.slot][position // self.page_size], position % self.page_size

    def write(self, rows: list[Row]) -> None:
        addresses = [self.address(sequence, position) for sequence, position, _ in rows]
        assert len(set(addresses)) == len(addresses), "two rows write one place"
        for (page, offset), (_, position, token) in zip(addresses, rows, strict=True):
            assert page != SCRATCH
            self.store[page][offset] = (position, token)

    def check_attended(self, row: Row) -> None:
        sequence, position, _ = row
        for j in range(position + 1):
            page, offset = self.address(sequence, j)
            assert self.store[page][offset] == (j, self.truth[sequence][j])

    def sample(self, sequence: Sequence) -> int:
        token = next(self.new_tokens)
        assert sequence.slot is not None
        self.last_token[sequence.slot] = token
        self.truth[sequence].append(token)
        assert len(self.truth[sequence]) <= len(sequence.prompt) + sequence.max_new_tokens
        return token


class Rollout:
    """Scheduler, device and the steps in between whose tokens the host has not read."""

    def __init__(
        self,
        *,
        n_pages: int,
        page_size: int,
        n_slots: int,
        max_seq_length: int,
        budget: int,
        fixed_tile: int | None = None,
    ) -> None:
        self.pool = PagePool(n_pages, page_size)
        budget = max(budget, fixed_tile or 1)
        self.scheduler = Scheduler(self.pool, n_slots, max_seq_length, budget, fixed_tile)
        self.device = Device(self.pool, n_slots, max_seq_length)
        self.budget = budget
        self.unread: deque[list[tuple[Sequence, int]]] = deque()
        self.ends: dict[Sequence, int] = {}
        self.aborted: set[Sequence] = set()

    def add(self, prompt_length: int, ends: list[int], max_new_tokens: int) -> list[Sequence]:
        """Queue one group; sample i ends after `ends[i]` tokens, as if by an EOS."""
        first = 1000 * len(self.ends)
        group = Group(tuple(range(first, first + prompt_length)))
        samples = [Sequence(group, max_new_tokens, (first, i)) for i in range(len(ends))]
        for sequence, end in zip(samples, ends, strict=True):
            self.ends[sequence] = end
            self.scheduler.add(sequence)
        return samples

    def launch(self) -> Step | None:
        step = self.scheduler.next_step()
        if step is not None:
            assert bool(step.chunks) != bool(step.decode)
            assert sum(c.end - c.start for c in step.chunks) <= self.budget
            self.unread.append(self.device.run(step))
        self.check()
        return step

    def read(self) -> None:
        """Commit the tokens of the oldest step."""
        for sequence, token in self.unread.popleft():
            kept = self.scheduler.commit(sequence, token)
            assert kept != sequence.finished
            if kept and len(sequence.tokens) == self.ends[sequence]:
                self.scheduler.finish(sequence)
            self.check()

    def abort(self, sequence: Sequence) -> None:
        self.aborted.add(sequence)
        self.scheduler.finish(sequence)
        self.check()

    def drain(self, ahead: int = 1) -> list[Step]:
        """Run to the end with up to `ahead` unread steps; all tokens must have arrived by then."""
        steps: list[Step] = []
        while self.scheduler.has_work or self.unread:
            step = self.launch() if len(self.unread) <= ahead else None
            steps += [step] if step else []
            if step is None:
                assert self.unread, "nothing to launch and nothing to wait for"
                self.read()
            assert len(steps) < 10_000, "no progress"
        self.check_results()
        return steps

    def unfinished(self) -> list[Sequence]:
        return [s for s in self.ends if not s.finished]

    def check(self) -> None:
        """Pages are conserved and shared within a group's prefix only; slots are exclusive."""
        sequences, groups = self.unfinished(), {s.group for s in self.ends}
        assert all(not s.pages and s.slot is None for s in self.ends if s.finished)
        held = Counter(page for holder in (*sequences, *groups) for page in holder.pages)
        for page in range(self.pool.n_pages):
            assert self.pool.references(page) == held[page]
        assert self.pool.free == self.pool.n_pages - 1 - len(held)
        assert not held[SCRATCH]
        assert all(len(g.pages) in (0, self.pool.pages_for(g.shared)) for g in groups)
        slots = [s.slot for s in sequences if s.slot is not None]
        assert len(set(slots)) == len(slots)
        assert self.scheduler.in_flight == sum(s.pending for s in self.ends)
        self.check_sharing(sequences)

    def check_sharing(self, sequences: list[Sequence]) -> None:
        users: dict[int, set[tuple[int, Group]]] = {}
        for sequence in sequences:
            full = sequence.group.shared // self.pool.page_size
            for column, page in enumerate(sequence.pages):
                owner = users.setdefault(page, {(column, sequence.group)})
                assert owner == {(column, sequence.group)}
                users[page] = owner if column < full else set()

    def check_results(self) -> None:
        assert self.pool.free == self.pool.n_pages - 1
        assert not self.scheduler.in_flight
        for sequence, end in self.ends.items():
            assert sequence.finished
            assert not sequence.pending
            if sequence in self.aborted:
                end = len(sequence.tokens)
            truth = self.device.truth.get(sequence, list(sequence.prompt))
            assert sequence.tokens == truth[len(sequence.prompt) :][:end]
            assert len(sequence.tokens) == end
