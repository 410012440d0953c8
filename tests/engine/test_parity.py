"""Greedy ids and log-probabilities are the oracle's, whatever the batch, the budget, the pages."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from flexinfer.engine.engine import Engine
from tests.support.engines import assert_greedy, complete, ids_of, request, tiny
from tests.support.oracle import hf_greedy
from tests.support.prompts import TOLERANCE, prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 25, 31, 32, 33, 40, 65)
"""On both sides of pages of 8 and 16, the window of 8 and prefill tiles of 32."""
PROMPTS = prompts_of(*LENGTHS)
NEW = 20
BACKENDS = ["dense", pytest.param("flex", marks=pytest.mark.slow)]

families = pytest.mark.parametrize("family", FAMILIES)
backends = pytest.mark.parametrize("attention", BACKENDS)


@families
def test_the_engine_is_the_oracle_token_by_token(family: str, open_engine: Open) -> None:
    prompts = [PROMPTS[4], PROMPTS[7]]
    for prompt, found in zip(
        prompts, complete(open_engine(family), prompts, max_new_tokens=10), strict=True
    ):
        ids, logprobs = hf_greedy(tiny(family), prompt, 10)
        assert list(found.token_ids) == ids
        assert max(abs(a - b) for a, b in zip(found.logprobs, logprobs, strict=True)) < TOLERANCE
        assert len(set(ids)) > 5, "a model that repeats itself tests nothing"


@backends
@families
def test_lengths_across_every_edge(family: str, attention: str, open_engine: Open) -> None:
    engine = open_engine(family, attention=attention)
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))


@pytest.mark.parametrize("page", [16, 64])
@families
def test_pages_of_any_size(family: str, page: int, open_engine: Open) -> None:
    engine = open_engine(family, page_size=page)
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))


@backends
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
@families
def test_company_and_order_do_not_matter(
    family: str, batch: int, attention: str, open_engine: Open
) -> None:
    prompts = [PROMPTS[i] for i in (0, 3, 4, 6, 8, 9, 11, 12)]
    random.Random(batch).shuffle(prompts)
    engine = open_engine(family, max_batch_size=8, attention=attention)
    found = [
        completion
        for at in range(0, len(prompts), batch)
        for completion in complete(engine, prompts[at : at + batch], max_new_tokens=8)
    ]
    assert_greedy(family, prompts, found)


@families
def test_more_requests_than_slots(family: str, open_engine: Open) -> None:
    engine = open_engine(family, max_batch_size=3)
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=6))


@backends
@pytest.mark.parametrize("budget", [1, 5, 33])
@families
def test_prefill_in_chunks_is_prefill_at_once(
    family: str, budget: int, attention: str, open_engine: Open
) -> None:
    prompts = [PROMPTS[i] for i in (0, 5, 8, 10, 11, 13)]
    engine = open_engine(family, prefill_tokens=budget, attention=attention)
    found = complete(engine, prompts, max_new_tokens=6)
    prefilled = sum(len(prompt) for prompt in prompts if len(prompt) > 1)
    assert engine.stats.prefill_tokens == prefilled
    assert engine.stats.prefill_steps >= prefilled / budget
    at_once = open_engine(family, attention=attention)
    assert ids_of(complete(at_once, prompts, max_new_tokens=6)) == ids_of(found)
    assert at_once.stats.prefill_steps == 1
    assert_greedy(family, prompts, found)


@backends
@families
def test_requests_that_end_at_different_times(
    family: str, attention: str, open_engine: Open
) -> None:
    engine = open_engine(family, attention=attention)
    lengths = (2, 18, 3, 18)
    prompts = [PROMPTS[i] for i in (9, 3, 7, 0)]
    outputs = engine.generate(
        [request(p, max_new_tokens=n) for p, n in zip(prompts, lengths, strict=True)]
    )
    found = [output.outputs[0] for output in outputs]
    assert [len(completion.token_ids) for completion in found] == list(lengths)
    assert_greedy(family, prompts, found)
