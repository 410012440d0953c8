"""Decides what the next step computes: continuous batching over a pool of pages.

The engine launches step k+1 before it has read the tokens of step k. So the scheduler works on what
is launched, never looks at a token's value, and takes pages from a running sequence only when
nothing is in flight.
"""

from __future__ import annotations

from collections import deque

from flexinfer.core.pages import PagePool
from flexinfer.core.placement import Placement
from flexinfer.core.refill import Refill
from flexinfer.core.sequence import Group, Sequence
from flexinfer.core.step import Chunk, Step, chunk_end
from flexinfer.errors import NotEnoughMemory


class Scheduler:
    """Queues sequences and turns them into steps; first come, first served, prefill first.

    `prefill_tokens` and `preemptions` count prompt positions launched and sequences sent back.
    """

    def __init__(
        self,
        pool: PagePool,
        max_batch_size: int,
        max_seq_length: int,
        prefill_tokens: int,
        fixed_tile: int | None = None,
    ) -> None:
        """Serve sequences of up to `max_seq_length` tokens, `prefill_tokens` tokens a prefill step.

        With a `fixed_tile`, which position is computed by which kind of step, and in which tile of
        queries, depends on its sequence alone: chunks end at multiples of it, and the last known
        token decodes. Raises NotEnoughMemory if the pool does not hold one sequence of that length.
        """
        required, available = pool.pages_for(max_seq_length), pool.n_pages - 1
        if required > available:
            raise NotEnoughMemory(
                f"--kv-memory holds {available} KV pages of {pool.page_size} tokens; one sequence "
                f"of {max_seq_length} tokens needs {required}",
                hint="raise --kv-memory or lower --max-seq-length",
            )
        self.pool = pool
        self.prefill_tokens = 0
        self.preemptions = 0
        self._tile = fixed_tile
        self._budget = max(prefill_tokens, fixed_tile or 1)
        self._max_seq_length = max_seq_length
        self._max_batch_size = max_batch_size
        self.reset()

    def reset(self) -> None:
        """Forget every sequence, in whatever state an error or an interrupt left it."""
        self.pool.reset()
        self._refill = Refill(self._max_batch_size)
        self._placement = Placement(self.pool, self._max_batch_size)
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._entering: list[Sequence] = []
        self._in_flight = 0

    @property
    def has_work(self) -> bool:
        """Whether a sequence is unfinished."""
        return bool(self._waiting or self._prefilling or self._decoding)

    @property
    def in_flight(self) -> int:
        """Tokens that are launched and not committed, those of finished sequences included."""
        return self._in_flight

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; add all samples of a group before the next step, so that they share."""
        assert len(sequence.prompt) + sequence.max_new_tokens <= self._max_seq_length, sequence.key
        sequence.group.unfinished += 1
        self._waiting.append(sequence)

    def commit(self, sequence: Sequence, token: int) -> bool:
        """Take the oldest launched token of a sequence; False: it had finished, drop the token."""
        assert sequence.pending > 0, f"{sequence.key} has no token in flight"
        sequence.pending -= 1
        self._in_flight -= 1
        if not sequence.finished:
            sequence.tokens.append(token)
        return not sequence.finished

    def finish(self, sequence: Sequence) -> None:
        """End a sequence in any state; slot and pages are free at once, stream order makes it safe.

        Tokens of it that are still in flight must be committed all the same.
        """
        assert not sequence.finished, f"{sequence.key} finished twice"
        sequence.finished = True
        queue = next(q for q in (self._decoding, self._prefilling, self._waiting) if sequence in q)
        queue.remove(sequence)
        self._clear(sequence)
        sequence.group.unfinished -= 1
        if not sequence.group.unfinished:
            self._placement.drop(sequence.group)

    def forget(self, group: Group) -> None:
        """Let go of what a group keeps of its prompt; samples still to come prefill it again."""
        self._placement.drop(group)

    def _clear(self, sequence: Sequence) -> None:
        """Take back what the sequence holds, the lead of its group included."""
        if sequence.slot is not None:
            self._placement.clear(sequence)
        if sequence.group.leader is sequence:
            sequence.group.leader = None

    def next_step(self) -> Step | None:
        """Make the next step; None: all is done, or tokens in flight must be committed first."""
        self._admit()
        while self._waiting and not self._prefilling and not self._decoding:
            self._placement.drop_newest()
            self._admit()
        step = self._prefill_step() if self._prefilling else self._decode_step()
        assert step or self._in_flight or not self.has_work, "stuck: a full sequence is unfinished"
        return step

    def _admit(self) -> None:
        """Let waiting sequences run while slots, pages and the step's token budget allow.

        A sample whose prompt is being prefilled waits without losing its slot to later ones. Each
        running sequence that may grow keeps one free page to grow into.
        """
        free = self._placement.free_slots
        if not self._waiting or not free:
            return
        stalls = self._decoding and not self._prefilling
        if stalls and not self._refill.due(free, len(self._waiting)):
            return
        passed: list[Sequence] = []
        backlog = sum(s.length - s.computed for s in self._prefilling)
        growing = sum(map(self._may_grow, self._prefilling + self._decoding))
        while self._waiting and backlog < self._budget and self._placement.free_slots > len(passed):
            sequence = self._waiting[0]
            if sequence.group.leader is not None:
                passed.append(self._waiting.popleft())
            elif self._placement.cost(sequence) + growing <= self.pool.free:
                self._start(self._waiting.popleft())
                backlog += sequence.length - sequence.computed
                growing += self._may_grow(sequence)
            else:
                break
        self._waiting.extendleft(reversed(passed))

    def _may_grow(self, sequence: Sequence) -> bool:
        """Whether a running sequence may need more pages than it has."""
        return len(sequence.pages) < self.pool.pages_for(sequence.final_kv)

    def _start(self, sequence: Sequence) -> None:
        """Place a sequence; if its group keeps no pages it leads, and the others wait for it.

        Where only the last token's KV is missing there is nothing to prefill: it decodes.
        """
        self._placement.place(sequence)
        self._refill.done()
        if sequence.length - sequence.computed == 1:
            self._decoding.append(sequence)
            self._entering.append(sequence)
            return
        self._prefilling.append(sequence)
        if sequence.group.shared and not sequence.group.pages:
            sequence.group.leader = sequence

    def _prefill_step(self) -> Step:
        """Pack the running prefills into the token budget, oldest first."""
        chunks: list[Chunk] = []
        left = self._budget
        for sequence in self._prefilling:
            end = chunk_end(sequence, left, self._tile)
            if end > sequence.computed:
                left -= end - sequence.computed
                chunks.append(Chunk(sequence, sequence.computed, end, end == sequence.length))
        for chunk in chunks:
            self._launch(chunk)
        return self._step(tuple(chunks), ())

    def _launch(self, chunk: Chunk) -> None:
        """Count a chunk as computed; a sampled one begins to decode, a led prompt is now shared."""
        sequence, group = chunk.sequence, chunk.sequence.group
        self._placement.check_writable(sequence, chunk.start, chunk.end)
        sequence.computed = chunk.end
        self.prefill_tokens += chunk.end - chunk.start
        if group.leader is sequence and chunk.end >= group.shared:
            group.leader = None
            if group.unfinished > 1:
                self._placement.keep(group, sequence.pages)
        if chunk.sampled:
            self._expect_token(sequence)
        elif self._tile is None or chunk.end < sequence.length - 1:
            return
        else:
            self._entering.append(sequence)
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)

    def _expect_token(self, sequence: Sequence) -> None:
        """Count a token that is sampled on the device."""
        sequence.pending += 1
        self._in_flight += 1

    def _decode_step(self) -> Step | None:
        """Let each decoding sequence that wants a token compute one; None: wait for results."""
        if not self._make_room():
            return None
        rows = tuple(s for s in self._decoding if s.wants_token)
        for sequence in rows:
            assert sequence.computed == sequence.length - 1, f"{sequence.key} has a gap in its KV"
            self._placement.extend(sequence)
            self._placement.check_writable(sequence, sequence.computed, sequence.length)
            sequence.computed += 1
            self._expect_token(sequence)
        return self._step((), rows) if rows else None

    def _step(self, chunks: tuple[Chunk, ...], rows: tuple[Sequence, ...]) -> Step:
        """Make a step that carries all changes since the last one."""
        entries, self._entering = tuple(self._entering), []
        return Step(chunks, rows, *self._placement.take_changes(), entries)

    def _make_room(self) -> bool:
        """Free the pages a decode step needs; False: not before what is in flight is committed."""
        while self._missing_pages() > self.pool.free:
            if self._in_flight:
                return False
            if len(self._decoding) > 1:
                self._preempt()
            else:
                self._placement.drop_newest()
        return True

    def _missing_pages(self) -> int:
        """Pages that the next decode step has to acquire."""
        pages_for = self.pool.pages_for
        return sum(s.wants_token and pages_for(s.length) > len(s.pages) for s in self._decoding)

    def _preempt(self) -> None:
        """Send the sequence admitted last back to the head of the queue; it keeps its tokens."""
        sequence = self._decoding.pop()
        assert sequence.wants_token, f"{sequence.key} is full and unfinished"
        self._clear(sequence)
        self._waiting.appendleft(sequence)
        self.preemptions += 1
