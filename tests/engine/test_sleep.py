"""An engine that sleeps holds no KV memory, and wakes to the same answers."""

from __future__ import annotations

import pytest

from flexinfer.errors import UsageError
from tests.support.engines import complete, make_engine, request
from tests.support.tiny import FAMILIES

PROMPTS = ((5, 6, 7), tuple(range(20, 40)), (9,))


@pytest.mark.parametrize("attention", ["dense", "flex"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_wakes_to_the_same_answers(family: str, attention: str) -> None:
    with make_engine(family, attention=attention) as engine:
        cache = engine.machinery.programs.cache
        awake = cache.n_bytes
        first = complete(engine, PROMPTS, max_new_tokens=12)
        engine.sleep()
        assert cache.n_bytes == 0
        assert complete(engine, PROMPTS, max_new_tokens=12) == first
        assert cache.n_bytes == awake > 0


def test_nothing_that_was_cached_survives() -> None:
    """A page of before would be read as zeros: the prompt is prefilled anew."""
    with make_engine("qwen3") as engine:
        complete(engine, PROMPTS, max_new_tokens=4)
        before = engine.stats.prefill_tokens
        engine.sleep()
        engine.sleep()
        complete(engine, PROMPTS, max_new_tokens=4)
        assert engine.stats.prefill_tokens == 2 * before


def test_it_may_be_refreshed_asleep() -> None:
    with make_engine("qwen3") as engine:
        first = complete(engine, PROMPTS, max_new_tokens=4)
        engine.sleep()
        engine.refresh()
        assert complete(engine, PROMPTS, max_new_tokens=4) == first


def test_it_does_not_fall_asleep_in_a_call() -> None:
    with make_engine("qwen3") as engine:
        stream = engine.stream([request(p, max_new_tokens=8) for p in PROMPTS])
        next(stream)
        with pytest.raises(UsageError):
            engine.sleep()
        assert len(list(stream)) == len(PROMPTS) - 1
