"""Running ahead of the host: ends are seen late, extra tokens are dropped, nothing else changes.

On CUDA the next step is launched before the last one is read; here the same loop does so on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import RequestOutput
from flexinfer.engine.steps.loop import Loop
from tests.support.engines import assert_greedy, assert_idle, complete, few_pages, ids_of, request
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
PROMPTS = prompts_of(9, 3, 17, 12, 8)
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.2, "seed": 4}
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(params=[1, 3])
def lag(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let loops run 1 or 3 steps ahead; return a log of launches and readings."""
    log: list[str] = []
    init, launch, collect = Loop.__init__, Loop._launch, Loop._collect

    def ahead(self: Loop, *args: Any) -> None:
        init(self, *args)
        self._lag = request.param

    def launched(self: Loop, step: Any) -> Any:
        log.append("launch")
        return launch(self, step)

    def collected(self: Loop, step: Any) -> Any:
        log.append("read")
        return collect(self, step)

    monkeypatch.setattr(Loop, "__init__", ahead)
    monkeypatch.setattr(Loop, "_launch", launched)
    monkeypatch.setattr(Loop, "_collect", collected)
    log.append(str(request.param))
    return log


@families
def test_ids_are_the_oracles(family: str, lag: list[str], open_engine: Open) -> None:
    engine = open_engine(family, max_batch_size=3)
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=12))


def test_the_host_reads_behind_the_device(lag: list[str], open_engine: Open) -> None:
    complete(open_engine("qwen3"), PROMPTS, max_new_tokens=12)
    ahead, events = int(lag[0]), lag[1:]
    assert events[: ahead + 2] == ["launch"] * (ahead + 1) + ["read"]
    assert events.count("launch") == events.count("read") == 12
    depth = [events[:i].count("launch") - events[:i].count("read") for i in range(len(events))]
    assert max(depth) == ahead + 1


@families
def test_ends_seen_late_are_still_ends(family: str, lag: list[str], open_engine: Open) -> None:
    free = complete(open_engine(family), PROMPTS, max_new_tokens=20)
    ends = {c.token_ids[i] for c, i in zip(free, (2, 5, 5, 0, 9), strict=True)}
    engine = open_engine(family, eos=tuple(ends), max_batch_size=2)
    taken: dict[int, list[int]] = {}
    requests = [request(p, max_new_tokens=20) for p in PROMPTS]
    outputs = list(
        engine.stream(requests, lambda i, n, token: taken.setdefault(i, []).append(token))
    )
    for output in outputs:
        whole, (found,) = free[output.index].token_ids, output.outputs
        first = next((i for i, token in enumerate(whole) if token in ends), len(whole) - 1)
        assert found.token_ids == whole[: first + 1] == tuple(taken[output.index])
        assert len(found.logprobs) == len(found.policy_logprobs) == first + 1
    assert any(len(output.outputs[0].token_ids) < 20 for output in outputs)


@families
def test_stop_strings_and_samples(family: str, lag: list[str], open_engine: Open) -> None:
    given = {"max_new_tokens": 15, "n": 3, "stop": ["a", "|"]} | SAMPLED
    requests = [request(p, **given) for p in PROMPTS]
    ahead = open_engine(family, max_batch_size=4).generate(requests)
    with pytest.MonkeyPatch.context() as patch:
        init = Loop.__init__

        def behind(self: Loop, *args: Any) -> None:
            init(self, *args)
            self._lag = 0

        patch.setattr(Loop, "__init__", behind)
        behind_outputs = open_engine(family, max_batch_size=4).generate(requests)
    assert said(ahead) == said(behind_outputs)
    assert {stop for _, _, stop in said(ahead)} >= {"a", "|"}


def said(outputs: list[RequestOutput]) -> list[tuple[tuple[int, ...], str, str | int | None]]:
    """Return ids, text and stop of every sample."""
    return [(c.token_ids, c.text, c.stop) for output in outputs for c in output.outputs]


def test_preemption_waits_for_what_is_under_way(lag: list[str], open_engine: Open) -> None:
    engine = open_engine("gemma4")
    with few_pages(engine, 9):
        assert_greedy("gemma4", PROMPTS, complete(engine, PROMPTS, max_new_tokens=25))
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_abandoned_with_steps_under_way(taken: int, lag: list[str], open_engine: Open) -> None:
    engine = open_engine("llama", max_batch_size=4)
    requests = [request(p, max_new_tokens=4 + 3 * i, n=2) for i, p in enumerate(PROMPTS)]
    stream = engine.stream(requests)
    for _ in range(taken):
        next(stream)
    stream.close()
    assert_idle(engine)
    with few_pages(engine, 8):
        assert_greedy("llama", PROMPTS, complete(engine, PROMPTS, max_new_tokens=20))


def test_a_callback_that_raises(lag: list[str], open_engine: Open) -> None:
    engine = open_engine("llama", max_batch_size=4)
    tokens: list[int] = []

    def on_token(*args: int) -> None:
        tokens.append(args[2])
        if len(tokens) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(engine.stream([request(p, max_new_tokens=9, n=2) for p in PROMPTS], on_token))
    assert_idle(engine)
    first, second = (complete(engine, PROMPTS, max_new_tokens=9) for _ in range(2))
    assert ids_of(first) == ids_of(second)
