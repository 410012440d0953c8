"""The scheduler's rules one by one, on schedules short enough to read."""

from __future__ import annotations

import pytest

from flexinfer.core.pages import PageCopy, PagePool, PageWrite
from flexinfer.core.scheduler import Scheduler
from flexinfer.core.sequence import Sequence
from flexinfer.core.step import Step
from flexinfer.errors import NotEnoughMemory
from tests.core.simulation import Rollout


def rollout(
    *, n_pages: int = 64, page_size: int = 4, n_slots: int = 4, budget: int = 64
) -> Rollout:
    return Rollout(
        n_pages=n_pages, page_size=page_size, n_slots=n_slots, max_seq_length=24, budget=budget
    )


def step_of(engine: Rollout) -> Step:
    step = engine.launch()
    assert step is not None
    return step


def spans(step: Step) -> list[tuple[tuple[int, int], int, int]]:
    """Chunks as (key, start, end)."""
    return [(c.sequence.key, c.start, c.end) for c in step.chunks]


def one(engine: Rollout, prompt_length: int, new_tokens: int) -> Sequence:
    return engine.add(prompt_length, [new_tokens], new_tokens)[0]


def test_a_pool_below_one_sequence_is_refused() -> None:
    Scheduler(PagePool(7, 4), 1, 24, 8)
    with pytest.raises(NotEnoughMemory, match=r"--kv-memory holds 5 .* 24 tokens needs 6") as error:
        Scheduler(PagePool(6, 4), 1, 24, 8)
    assert error.value.hint == "raise --kv-memory or lower --max-seq-length"


def test_prefill_then_decode_to_the_limit() -> None:
    engine = rollout()
    a = one(engine, prompt_length=4, new_tokens=3)
    first = step_of(engine)
    assert spans(first) == [(a.key, 0, 4)]
    assert first.page_writes == (PageWrite(0, 0, 1),)
    assert step_of(engine) == Step((), (a,), (PageWrite(0, 1, 2),), ())
    assert step_of(engine) == Step((), (a,), (), ())
    assert engine.launch() is None, "the fourth token is launched"
    assert engine.scheduler.in_flight == 3
    engine.drain()


def test_prompts_are_packed_and_cut_at_the_budget() -> None:
    engine = rollout(budget=6)
    a, b, c = (one(engine, n, 2) for n in (4, 9, 3))
    assert spans(step_of(engine)) == [(a.key, 0, 4), (b.key, 0, 2)]
    assert spans(step_of(engine)) == [(b.key, 2, 8)]
    last = step_of(engine)
    assert spans(last) == [(b.key, 8, 9), (c.key, 0, 3)]
    assert [chunk.sampled for chunk in last.chunks] == [True, True]
    assert step_of(engine).decode == (a, b, c)
    engine.drain()


def test_followers_share_full_pages_and_copy_the_last() -> None:
    engine = rollout()
    a, b, c = engine.add(7, [6, 6, 6], 6)
    first, second = step_of(engine), step_of(engine)
    assert spans(first) == [(a.key, 0, 7)]
    assert second.decode == (a, b, c), "only the last token's KV is missing: they decode at once"
    assert second.entries == (b, c)
    assert second.page_copies == (PageCopy(2, 3, 2), PageCopy(2, 4, 2))
    assert (a.pages, b.pages, c.pages) == ([1, 2], [1, 3], [1, 4])
    assert engine.pool.references(1) == 4
    third = step_of(engine)
    assert (third.decode, third.entries) == ((a, b, c), ())
    engine.drain()
    assert engine.scheduler.prefill_tokens == 7


def test_samples_prefill_again_what_their_group_was_told_to_forget() -> None:
    engine = rollout()
    a, b, c = engine.add(7, [6, 6, 6], 6)
    step_of(engine)
    engine.scheduler.forget(a.group)
    assert spans(step_of(engine)) == [(b.key, 0, 7)]
    assert step_of(engine).entries == (c,)
    assert (a.pages, b.pages, c.pages) == ([1, 2], [3, 4], [3, 5])
    engine.drain()


def test_a_prefix_of_full_pages_is_not_copied() -> None:
    engine = rollout()
    a, b = engine.add(5, [4, 4], 4)
    step_of(engine)
    assert step_of(engine).page_copies == ()
    assert a.pages[0] == b.pages[0]
    assert a.pages[1] != b.pages[1]
    engine.drain()


def test_prompts_of_one_token_share_nothing_and_wait_for_nobody() -> None:
    engine = rollout()
    a, b = engine.add(1, [2, 2], 2)
    step = step_of(engine)
    assert (step.decode, step.entries) == ((a, b), (a, b))
    engine.drain()
    assert engine.scheduler.prefill_tokens == 0


def test_an_entry_does_not_wait_for_the_decode_step() -> None:
    engine = rollout(budget=6)
    a, b = one(engine, 9, 3), one(engine, 1, 3)
    first = step_of(engine)
    assert (spans(first), first.entries) == ([(a.key, 0, 6)], ())
    second = step_of(engine)
    assert (spans(second), second.entries) == ([(a.key, 6, 9)], (b,))
    assert step_of(engine) == Step((), (b, a), (), (), ())
    engine.drain()


def test_waiting_followers_keep_their_slots() -> None:
    engine = rollout(n_slots=3)
    a, b = engine.add(6, [4, 4], 4)
    c, d = one(engine, 5, 4), one(engine, 5, 4)
    assert spans(step_of(engine)) == [(a.key, 0, 6), (c.key, 0, 5)]
    assert step_of(engine).entries == (b,)
    assert d.slot is None
    engine.drain()


def test_an_aborted_leader_is_followed_by_another() -> None:
    engine = rollout(budget=4)
    a, b, c = engine.add(7, [2, 2, 2], 2)
    assert spans(step_of(engine)) == [(a.key, 0, 4)]
    engine.abort(a)
    assert spans(step_of(engine)) == [(b.key, 0, 4)]
    assert spans(step_of(engine)) == [(b.key, 4, 7)]
    assert step_of(engine).entries == (c,)
    engine.drain()


def test_a_finished_leader_leaves_the_prompt_to_its_followers() -> None:
    engine = rollout(n_slots=1)
    a, b = engine.add(7, [1, 2], 2)
    step_of(engine)
    engine.read()
    assert a.finished
    assert a.group.pages == [1, 2]
    assert step_of(engine).entries == (b,)
    engine.drain()


def test_tokens_after_the_end_are_dropped_and_the_slot_is_used_at_once() -> None:
    engine = rollout(n_slots=1)
    a = engine.add(4, [1], 9)[0]
    b = one(engine, 4, 1)
    step_of(engine)
    step_of(engine)
    engine.read()
    assert a.finished
    assert a.pending == 1
    assert spans(step_of(engine)) == [(b.key, 0, 4)]
    assert b.slot == 0
    engine.drain()
    assert len(a.tokens) == 1


def test_a_long_request_is_not_overtaken() -> None:
    engine = rollout(n_pages=7)
    a, b, c = one(engine, 12, 4), one(engine, 16, 4), one(engine, 1, 1)
    assert spans(step_of(engine)) == [(a.key, 0, 12)]
    assert step_of(engine).decode == (a,)
    assert (b.slot, c.slot) == (None, None)
    engine.drain()


def test_a_running_sequence_keeps_a_page_to_grow_into() -> None:
    engine = rollout(n_pages=7)
    a, b = one(engine, 12, 4), one(engine, 12, 4)
    assert spans(step_of(engine)) == [(a.key, 0, 12)]
    assert b.slot is None
    engine.drain()
    assert engine.scheduler.preemptions == 0


def test_preemption_waits_for_results_and_keeps_tokens() -> None:
    engine = rollout(n_pages=7)
    a, b = one(engine, 8, 16), one(engine, 5, 12)
    while (step := engine.launch()) is not None:
        assert step.chunks or step.decode == (a, b)
    assert engine.pool.free == 0
    assert engine.scheduler.preemptions == 0, "tokens are in flight"
    while engine.unread:
        engine.read()
    assert step_of(engine).decode == (a,)
    assert engine.scheduler.preemptions == 1
    assert (b.slot, b.pages, b.computed) == (None, [], 0)
    kept = len(b.tokens)
    assert kept > 0
    resumed = next(c for s in engine.drain() for c in s.chunks if c.sequence is b)
    assert (resumed.start, resumed.end) == (0, 5 + kept)


def test_the_preempted_come_back_before_the_others() -> None:
    engine = rollout(n_pages=7, n_slots=2)
    a, b, c = one(engine, 8, 16), one(engine, 5, 12), one(engine, 4, 2)
    order = [chunk.sequence for step in engine.drain() for chunk in step.chunks]
    assert engine.scheduler.preemptions >= 1
    assert order[:3] == [a, b, b]
    assert order[-1] is c


def test_a_preempted_follower_uses_the_kept_prompt_again() -> None:
    engine = rollout(n_pages=8, page_size=4)
    a, b = engine.add(9, [12, 12], 12)
    chunks = [c for step in engine.drain(ahead=0) for c in step.chunks]
    assert engine.scheduler.preemptions == 1
    again = chunks[-1]
    assert again.sequence is b
    assert again.start == a.group.shared


def test_kept_prompts_are_dropped_when_nothing_else_is_left() -> None:
    engine = rollout(n_pages=7, n_slots=1)
    a, b = engine.add(14, [2, 10], 10)
    while not a.finished:
        engine.launch()
        engine.read()
    assert a.group.pages
    while len(b.tokens) < 7:
        step_of(engine)
        engine.read()
    assert b.pages[:3] == a.group.pages[:3]
    while len(b.tokens) == 7:
        step_of(engine)
        engine.read()
    assert len(b.pages) == 6
    assert not a.group.pages
    assert engine.scheduler.preemptions == 0
    engine.drain()


def test_misuse_is_caught() -> None:
    engine = rollout()
    a = one(engine, 4, 2)
    with pytest.raises(AssertionError, match="no token in flight"):
        engine.scheduler.commit(a, 1)
    engine.abort(a)
    with pytest.raises(AssertionError, match="finished twice"):
        engine.scheduler.finish(a)
    with pytest.raises(AssertionError):
        one(engine, 20, 5)


def test_writing_a_page_that_others_read_is_caught() -> None:
    engine = rollout()
    a, b = engine.add(7, [6, 6], 6)
    step_of(engine)
    step_of(engine)
    engine.pool.share(b.pages[-1])
    with pytest.raises(AssertionError, match="is shared"):
        engine.launch()
    assert a.slot != b.slot


def test_reset_leaves_nothing_of_an_interrupted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(scheduler: Scheduler) -> bool:
        raise KeyboardInterrupt

    engine = rollout()
    engine.add(6, [3, 3], 3)
    step_of(engine)
    one(engine, prompt_length=1, new_tokens=2)
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_make_room", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.scheduler.next_step()
    engine.scheduler.reset()
    assert engine.pool.free == engine.pool.n_pages - 1
    assert not engine.scheduler.has_work
    fresh = rollout()
    one(engine, prompt_length=5, new_tokens=2)
    one(fresh, prompt_length=5, new_tokens=2)
    again, first = engine.scheduler.next_step(), fresh.scheduler.next_step()
    assert again is not None
    assert first is not None
    assert (again.page_writes, again.page_copies, again.entries) == (first.page_writes, (), ())
