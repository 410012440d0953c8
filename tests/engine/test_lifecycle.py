"""Callers who walk away, callbacks that raise, calls one after another: nothing stays behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.errors import UsageError
from tests.support.engines import (
    assert_greedy,
    assert_idle,
    complete,
    few_pages,
    ids_of,
    loaded,
    machinery,
    make_engine,
    request,
    tiny,
)
from tests.support.prompts import prompts_of

Open = Callable[..., Engine]
PROMPTS = prompts_of(9, 3, 17, 12, 8)
MANY = [request(prompt, max_new_tokens=10 + i, n=2) for i, prompt in enumerate(PROMPTS)]


def still_works(engine: Engine) -> None:
    """Fail unless a call with few pages, which cannot end while tokens leak, gives oracle's ids."""
    assert_idle(engine)
    with few_pages(engine, 8):
        assert_greedy("qwen3", PROMPTS, complete(engine, PROMPTS, max_new_tokens=20))
    assert_idle(engine)


class Boom(Exception):
    """What a callback raises."""


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_caller_that_walks_away(taken: int, open_engine: Open) -> None:
    engine = open_engine("qwen3", max_batch_size=4)
    stream = engine.stream(MANY)
    for _ in range(taken):
        next(stream)
    stream.close()
    still_works(engine)


def test_a_stream_that_is_dropped(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    next(iter(engine.stream(MANY)))
    gc.collect()
    still_works(engine)


def test_a_stream_that_never_began(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    stream = engine.stream(MANY)
    assert_idle(engine)
    stream.close()
    still_works(engine)


@pytest.mark.parametrize("at", [1, 2, 7, 40])
def test_a_callback_that_raises(at: int, open_engine: Open) -> None:
    engine, calls = open_engine("qwen3", max_batch_size=4), []

    def on_token(index: int, sample: int, token: int) -> None:
        calls.append(token)
        if len(calls) == at:
            raise Boom

    with pytest.raises(Boom):
        list(engine.stream(MANY, on_token))
    assert len(calls) == at
    still_works(engine)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_a_step_that_fails(kind: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("qwen3", max_batch_size=4)
    programs = type(machinery(engine).programs)
    real, calls = getattr(programs, kind), []

    def failing(*args: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise Boom
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(programs, kind, failing)
        with pytest.raises(Boom):
            engine.generate(MANY)
    still_works(engine)


def test_preparation_that_fails(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("qwen3")

    def failing(*args: object) -> bool:
        raise Boom

    with monkeypatch.context() as patch:
        patch.setattr(type(machinery(engine).runner), "needs", failing)
        with pytest.raises(Boom):
            engine.generate(MANY)
    still_works(engine)


def test_a_stream_that_yielded_a_refusal_has_no_claim_yet(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    late = engine.stream([request(()), *MANY])
    assert next(late).error is not None
    stream = engine.stream(MANY)
    first = next(stream)
    with pytest.raises(UsageError, match="one call at a time"):
        next(late)
    assert len([first, *stream]) == len(MANY)
    still_works(engine)


def test_a_second_stream_while_one_is_open_is_refused(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    stream = engine.stream(MANY)
    first = next(stream)
    with pytest.raises(UsageError, match="one call at a time"):
        engine.generate(MANY[:1])
    rest = list(stream)
    assert sorted(output.index for output in [first, *rest]) == list(range(len(MANY)))
    still_works(engine)


def test_calls_do_not_disturb_each_other(open_engine: Open) -> None:
    engine = open_engine("gemma4")
    first = engine.generate([request(p, max_new_tokens=12) for p in PROMPTS])
    kept = [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].text) for o in first]
    second = engine.generate([request(p, max_new_tokens=15, n=3) for p in PROMPTS[::-1]])
    assert [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].text) for o in first] == (
        kept
    )
    assert_greedy("gemma4", PROMPTS, [output.outputs[0] for output in first])
    assert_greedy("gemma4", PROMPTS[::-1], [output.outputs[1] for output in second])


def test_streamed_outputs_and_tokens_are_those_generated(open_engine: Open) -> None:
    engine, tokens = open_engine("qwen3", max_batch_size=16), {}

    def on_token(index: int, sample: int, token: int) -> None:
        tokens.setdefault((index, sample), []).append(token)

    requests = MANY[::-1]
    outputs = list(engine.stream(requests, on_token))
    assert [output.index for output in outputs] == [4, 3, 2, 1, 0]
    for output in outputs:
        for number, completion in enumerate(output.outputs):
            assert tokens.pop((output.index, number)) == list(completion.token_ids)
    assert not tokens
    again = engine.generate(requests)
    assert [output.index for output in again] == list(range(len(MANY)))
    assert sorted(outputs, key=lambda output: output.index) == again


def test_no_requests(open_engine: Open) -> None:
    assert open_engine("qwen3").generate([]) == []


def test_statistics_add_up_over_calls(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    for _ in range(2):
        complete(engine, PROMPTS, max_new_tokens=5)
    stats = engine.stats
    assert stats.prefill_tokens == 2 * sum(map(len, PROMPTS))
    assert stats.prefill_steps == 2
    assert stats.decode_steps == stats.eager_steps == len(stats.step_s) == 8
    assert stats.decode_tokens == 2 * 4 * len(PROMPTS)
    assert stats.graph_replays == stats.preemptions == 0
    assert len(stats.ttft_s) == 2 * len(PROMPTS)
    assert all(0 < seconds < 60 for seconds in stats.ttft_s + stats.step_s)


def test_progress_reaches_its_total() -> None:
    lines: list[tuple[str, int, int]] = []
    config = EngineConfig(max_batch_size=3, max_seq_length=96, attention="dense")
    with Engine(loaded(tiny("qwen3")), config, lambda *line: lines.append(line)) as engine:
        complete(engine, PROMPTS, max_new_tokens=5)
    assert lines[-1] == ("generating", 25, 25)
    assert [done for _, done, _ in lines] == sorted(done for _, done, _ in lines)


def test_close_gives_the_cache_back_and_leaves_the_model() -> None:
    engine = make_engine("qwen3")
    complete(engine, PROMPTS[:1], max_new_tokens=3)
    held = machinery(engine)
    references = [weakref.ref(pool) for pool in held.programs.cache.layer(
        held.programs.decode_decoder.specs[0]
    )]  # fmt: skip
    del held
    engine.close()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.generate(MANY[:1])
    assert ids_of(complete(make_engine("qwen3"), PROMPTS[:1], max_new_tokens=3))


def test_an_engine_is_a_context() -> None:
    with make_engine("qwen3") as engine:
        complete(engine, PROMPTS[:1], max_new_tokens=3)
    with pytest.raises(UsageError, match="closed"):
        engine.generate(MANY[:1])
