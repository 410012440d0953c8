"""One call at a time, from whatever thread: a refresh and a generation never mix."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from flexinfer.engine.engine import Engine
from flexinfer.errors import FlexinferError, UsageError
from tests.engine.test_adapters import PROMPTS, engine_over
from tests.support.engines import assert_idle, complete, machinery, request, tiny

BUSY = "an engine serves one call at a time"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_over(tiny("qwen3"), "random:4") as made:
        yield made


@contextmanager
def under_way(call: Callable[[Callable[[], None]], Any]) -> Iterator[None]:
    """Run `call(wait)` in another thread, up to where it waits, and on when the block is left."""
    there, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        there.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call, wait)
        try:
            assert there.wait(60)
            yield
        finally:
            go_on.set()
        done.result()


def slowed(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, wait: Any) -> None:
    """Let the next call of a method wait at its start."""
    real = getattr(holder, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(holder, name, real)
        wait()
        return real(*args, **kwargs)

    monkeypatch.setattr(holder, name, slow)


def refused(engine: Engine, doing: str) -> None:
    """Fail unless nothing can begin: neither a refresh, nor a generation, nor a look inside."""
    calls: list[Callable[[], object]] = [
        engine.refresh,
        lambda: complete(engine, PROMPTS, max_new_tokens=2),
        lambda: engine.adapter_sha,
        lambda: engine.machinery,
    ]
    for call in calls:
        with pytest.raises(UsageError, match=f"{BUSY}, and a {doing} of this one is") as caught:
            call()
        assert caught.value.hint is not None


def test_nothing_begins_during_a_refresh(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    before, weights = complete(engine, PROMPTS, max_new_tokens=4), machinery(engine).weights

    def refresh(wait: Callable[[], None]) -> None:
        slowed(monkeypatch, weights.weights, "load", wait)
        engine.refresh()

    with under_way(refresh):
        refused(engine, "refresh")
    assert engine.policy_version == 1
    assert complete(engine, PROMPTS, max_new_tokens=4) == before


def test_nothing_begins_during_a_generation(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while its weights are looked at, before a sequence waits."""
    before, held = complete(engine, PROMPTS, max_new_tokens=4), machinery(engine)
    for holder, name in ((held.weights, "check"), (held.scheduler, "next_step")):

        def generate(wait: Callable[[], None], where: Any = (holder, name)) -> Any:
            slowed(monkeypatch, *where, wait)
            return complete(engine, PROMPTS, max_new_tokens=4)

        with under_way(generate):
            refused(engine, "stream")
        assert_idle(engine)
        engine.refresh()
        assert complete(engine, PROMPTS, max_new_tokens=4) == before


def test_a_callback_cannot_refresh(engine: Engine) -> None:
    stream = engine.stream([request(PROMPTS[0], max_new_tokens=4)], lambda *at: engine.refresh())
    with pytest.raises(UsageError, match=BUSY):
        list(stream)
    engine.refresh()


def test_calls_that_fail_leave_the_engine_free(engine: Engine) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        engine.refresh("none")
    with pytest.raises(UsageError, match="is no Request"):
        engine.generate(["text"])
    engine.refresh()
    list(engine.stream([request(PROMPTS[0], max_new_tokens=2)]))


def test_threads_that_do_not_wait(engine: Engine) -> None:
    """Whatever two threads do, each call is served rightly or refused."""
    before, sha = complete(engine, PROMPTS, max_new_tokens=4), engine.adapter_sha
    told = set()

    def often(call: Callable[[], Any]) -> list[Any]:
        served: list[Any] = []
        while len(served) < 5:
            try:
                served.append(call())
            except FlexinferError as error:
                told.add(error.message)
                time.sleep(0.001)
        return served

    calls = (engine.refresh, lambda: complete(engine, PROMPTS, max_new_tokens=4))
    with ThreadPoolExecutor(2) as pool:
        _, found = pool.map(often, calls)
    assert all(result == before for result in found)
    assert all(BUSY in message for message in told)
    assert engine.adapter_sha == sha


def test_an_engine_made_by_a_thread_serves_another(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.refresh).result()
        assert pool.submit(complete, engine, PROMPTS, max_new_tokens=4).result() == complete(
            engine, PROMPTS, max_new_tokens=4
        )
