"""Whatever arrives, ends or is aborted: each attended KV is the right one, nothing is lost."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.core.simulation import Rollout

PAGE_SIZES = st.sampled_from([1, 2, 4, 8])
LENGTHS = st.integers(1, 12)
NEW_TOKENS = st.integers(1, 12)
MAX_SEQ_LENGTH = 24
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Life(RuleBasedStateMachine):
    """Requests come and go in any order while steps are launched ahead of their results."""

    @initialize(
        page_size=PAGE_SIZES,
        spare=st.integers(0, 12),
        n_slots=st.integers(1, 5),
        budget=st.integers(1, 20),
        fixed_tile=st.sampled_from([None, None, 1, 4]),
    )
    def build(
        self, page_size: int, spare: int, n_slots: int, budget: int, fixed_tile: int | None
    ) -> None:
        self.rollout = Rollout(
            n_pages=1 + -(-MAX_SEQ_LENGTH // page_size) + spare,
            page_size=page_size,
            n_slots=n_slots,
            max_seq_length=MAX_SEQ_LENGTH,
            budget=budget,
            fixed_tile=fixed_tile,
        )

    @rule(prompt_length=LENGTHS, limit=NEW_TOKENS, data=st.data())
    def add(self, prompt_length: int, limit: int, data: st.DataObject) -> None:
        ends = data.draw(st.lists(st.integers(1, limit), min_size=1, max_size=4), label="ends")
        self.rollout.add(prompt_length, ends, limit)

    @rule(times=st.integers(1, 6))
    def launch(self, times: int) -> None:
        for _ in range(times):
            self.rollout.launch()

    @precondition(lambda self: self.rollout.unread)
    @rule()
    def read(self) -> None:
        self.rollout.read()

    @precondition(lambda self: self.rollout.unfinished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        alive = range(len(self.rollout.unfinished()))
        self.rollout.abort(self.rollout.unfinished()[data.draw(st.sampled_from(alive))])

    @invariant()
    def work_is_known(self) -> None:
        assert self.rollout.scheduler.has_work == bool(self.rollout.unfinished())

    def teardown(self) -> None:
        self.rollout.drain()


TestLife = Life.TestCase
TestLife.settings = settings(COMMON, max_examples=150, stateful_step_count=25)


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, list[int], int]]:
    """Groups as (prompt length, the samples' ends, max_new_tokens)."""
    groups = []
    for _ in range(draw(st.integers(1, 6))):
        limit = draw(NEW_TOKENS)
        ends = draw(st.lists(st.integers(1, limit), min_size=1, max_size=5))
        groups.append((draw(LENGTHS), ends, limit))
    return groups


@COMMON
@given(
    groups=workloads(),
    page_size=PAGE_SIZES,
    n_slots=st.integers(1, 6),
    budget=st.integers(1, 40),
    ahead=st.integers(0, 3),
)
def test_each_prompt_is_prefilled_once(
    groups: list[tuple[int, list[int], int]], page_size: int, n_slots: int, budget: int, ahead: int
) -> None:
    """With room for all, a group costs its prompt once; a prompt of one token costs nothing."""
    rollout = Rollout(
        n_pages=1 + 30 * MAX_SEQ_LENGTH,
        page_size=page_size,
        n_slots=n_slots,
        max_seq_length=MAX_SEQ_LENGTH,
        budget=budget,
    )
    for group in groups:
        rollout.add(*group)
    steps = rollout.drain(ahead)
    assert rollout.scheduler.preemptions == 0
    prefilled = sum(length for length, _, _ in groups if length > 1)
    assert rollout.scheduler.prefill_tokens == prefilled
    assert sum(c.end - c.start for s in steps for c in s.chunks) == prefilled
    partial = [(n - 1) % page_size > 0 for n, _, _ in groups]
    copies = sum(len(ends) - 1 for (_, ends, _), p in zip(groups, partial, strict=True) if p)
    assert sum(len(s.page_copies) for s in steps) == copies


@COMMON
@given(groups=workloads(), page_size=PAGE_SIZES, n_slots=st.integers(2, 6), ahead=st.integers(0, 3))
def test_the_smallest_pool_serves_everything(
    groups: list[tuple[int, list[int], int]], page_size: int, n_slots: int, ahead: int
) -> None:
    """A pool of one longest sequence loses nothing, however often it has to preempt."""
    longest = max(length + limit for length, _, limit in groups)
    rollout = Rollout(
        n_pages=1 + -(-longest // page_size),
        page_size=page_size,
        n_slots=n_slots,
        max_seq_length=longest,
        budget=16,
    )
    for group in groups:
        rollout.add(*group)
    rollout.drain(ahead)


@COMMON
@given(
    groups=workloads(),
    page_size=PAGE_SIZES,
    n_slots=st.integers(1, 6),
    budget=st.integers(1, 40),
    tile=st.integers(1, 6),
    ahead=st.integers(0, 3),
)
def test_with_a_fixed_tile_others_do_not_decide_how_a_position_is_computed(
    groups: list[tuple[int, list[int], int]],
    page_size: int,
    n_slots: int,
    budget: int,
    tile: int,
    ahead: int,
) -> None:
    """Prefill covers all of a prompt but its last token, in the same tiles; the rest decodes."""
    rollout = Rollout(
        n_pages=1 + 30 * MAX_SEQ_LENGTH,
        page_size=page_size,
        n_slots=n_slots,
        max_seq_length=MAX_SEQ_LENGTH,
        budget=budget,
        fixed_tile=tile,
    )
    for group in groups:
        rollout.add(*group)
    for step in rollout.drain(ahead):
        for chunk in step.chunks:
            last = len(chunk.sequence.prompt) - 1
            assert not chunk.sampled
            assert chunk.start % tile == 0
            assert chunk.end == last or chunk.end % tile == 0
    assert rollout.scheduler.prefill_tokens == sum(length - 1 for length, _, _ in groups)
