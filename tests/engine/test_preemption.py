"""Too few pages for all: sequences go back to the queue, keep their tokens, change no id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexinfer.engine.engine import Engine
from tests.support.engines import assert_greedy, assert_idle, complete, few_pages, request
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
PROMPTS = prompts_of(20, 5, 13, 8, 17, 30)
NEW = 30
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.parametrize(
    ("attention", "pages"),
    [("dense", 8), ("dense", 15), pytest.param("flex", 10, marks=pytest.mark.slow)],
)
@families
def test_preempted_sequences_are_the_oracles(
    family: str, attention: str, pages: int, open_engine: Open
) -> None:
    engine = open_engine(family, attention=attention)
    seen: dict[int, list[int]] = {}
    requests = [request(prompt, max_new_tokens=NEW) for prompt in PROMPTS]
    with few_pages(engine, pages):
        outputs = sorted(
            engine.stream(requests, lambda i, n, token: seen.setdefault(i, []).append(token)),
            key=lambda output: output.index,
        )
    assert engine.stats.preemptions > 0
    found = [output.outputs[0] for output in outputs]
    assert [tuple(seen[i]) for i in range(len(PROMPTS))] == [c.token_ids for c in found]
    assert_greedy(family, PROMPTS, found)
    assert_idle(engine)


def test_generated_tokens_are_computed_again_not_sampled_again(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    with few_pages(engine, 13):
        complete(engine, PROMPTS, max_new_tokens=NEW)
    stats = engine.stats
    sampled = NEW * len(PROMPTS)
    again = stats.prefill_tokens - sum(map(len, PROMPTS))
    assert again > 0
    firsts = len(PROMPTS) + stats.preemptions
    assert stats.decode_tokens == sampled - firsts


@families
def test_preempted_samples_keep_their_seeds(family: str, open_engine: Open) -> None:
    sampled = {"max_new_tokens": NEW, "temperature": 1.5, "top_k": 50, "seed": 3, "n": 2}
    requests = [request(prompt, **sampled) for prompt in PROMPTS]
    with_room = open_engine(family, max_batch_size=20).generate(requests)
    engine = open_engine(family, max_batch_size=20)
    with few_pages(engine, 13):
        without = engine.generate(requests)
    assert engine.stats.preemptions > 0
    for a, b in zip(with_room, without, strict=True):
        assert [c.token_ids for c in a.outputs] == [c.token_ids for c in b.outputs]
        for x, y in zip(a.outputs, b.outputs, strict=True):
            assert x.logprobs == pytest.approx(y.logprobs, abs=1e-4)


def test_a_penalty_survives_preemption(open_engine: Open) -> None:
    """What was generated before counts as seen after the sequence came back."""
    given = {"max_new_tokens": NEW, "repetition_penalty": 1.5}
    with_room = complete(open_engine("qwen3"), PROMPTS, **given)
    engine = open_engine("qwen3")
    with few_pages(engine, 13):
        without = complete(engine, PROMPTS, **given)
    assert engine.stats.preemptions > 0
    assert [c.token_ids for c in with_room] == [c.token_ids for c in without]
    free = complete(open_engine("qwen3"), PROMPTS, max_new_tokens=NEW)
    assert [c.token_ids for c in free] != [c.token_ids for c in with_room]


def test_a_budget_granted_by_flag(open_engine: Open) -> None:
    page_bytes = 2 * 2 * 16 * 8 * 4 * 4
    engine = open_engine("qwen3", kv_memory=14 * page_bytes, max_seq_length=64)
    assert_greedy("qwen3", PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
    assert engine.stats.preemptions > 0
