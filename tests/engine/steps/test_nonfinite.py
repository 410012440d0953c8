"""A weight that is NaN, reached by one token only: its requests fail, nobody else notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.config import SCALES
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps.loop import Loop
from flexinfer.engine.steps.nonfinite import NOT_FINITE
from tests.support.engines import (
    OVERRIDES,
    PAGE,
    assert_greedy,
    complete,
    few_pages,
    machinery,
    request,
)
from tests.support.oracle import hf_greedy
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, VOCAB

Open = Callable[..., Engine]
Ids = tuple[int, ...]
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}


@cache
def clean(family: str) -> PreTrainedModel:
    """A tiny model whose head is its own, so that an embedding reaches its own token only."""
    return FAMILIES[family](**UNTIED | dict(OVERRIDES.get(family, {})))


def poisoned(family: str, token: int) -> PreTrainedModel:
    model = FAMILIES[family](**UNTIED | dict(OVERRIDES.get(family, {})))
    with torch.no_grad():
        model.get_input_embeddings().weight[token, 5] = torch.nan
    return model


def drawn(engine: Engine, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[Ids]:
    """Return the ids of every sample of every prompt."""
    outputs = engine.generate([request(prompt, **sampling) for prompt in prompts])
    return [sample.token_ids for output in outputs for sample in output.outputs]


def unused(prompts: Sequence[Sequence[int]], found: Sequence[Ids]) -> int:
    """Return the first ordinary token that occurs neither in a prompt nor in a sample."""
    return min(set(range(4, VOCAB)) - set(chain(*prompts, *found)))


def assert_clean(engine: Engine) -> None:
    """Fail if the pool's pages, all free now, hold anything but numbers; scratch does not count."""
    programs = machinery(engine).programs
    for spec in programs.decode_decoder.specs:
        for pool in programs.cache.layer(spec):
            assert pool[:, :, PAGE:].isfinite().all()


def errors(engine: Engine, *requests: Any) -> list[str | None]:
    return [output.error for output in engine.generate(requests)]


@pytest.fixture(params=[0, 1, 3])
def lag(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let loops run steps ahead, as on CUDA."""
    init = Loop.__init__

    def ahead(self: Loop, *args: Any) -> None:
        init(self, *args)
        self._lag = request.param

    monkeypatch.setattr(Loop, "__init__", ahead)
    return int(request.param)


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 9, "seed": 1}]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_fails_and_the_others_go_on(
    open_engine: Open, family: str, sampling: dict[str, Any]
) -> None:
    prompts = prompts_of(5, 20, 9)
    expected = drawn(open_engine(clean(family)), prompts, max_new_tokens=4, **sampling)
    poison = unused(prompts, expected)
    bad = [*prompts[0], poison, *prompts[1]]
    requests = [request(p, max_new_tokens=4, **sampling) for p in (prompts[0], bad, *prompts[1:])]
    outputs = open_engine(poisoned(family, poison)).generate(requests)
    assert [output.error for output in outputs] == [None, NOT_FINITE, None, None]
    assert [sample.token_ids for output in outputs for sample in output.outputs] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_its_pages_spoil_nobody_who_gets_them_next(open_engine: Open, family: str) -> None:
    prompts = prompts_of(5, 20, 3)
    poison = unused(prompts, drawn(open_engine(clean(family)), prompts, max_new_tokens=12))
    engine = open_engine(poisoned(family, poison), max_batch_size=1)
    bad = request([*prompts[1], poison, *prompts[1]], max_new_tokens=4)
    assert errors(engine, bad, bad) == [NOT_FINITE] * 2
    assert_greedy(clean(family), prompts, complete(engine, prompts, max_new_tokens=12))


def test_a_token_of_its_own_ends_a_sample_later(open_engine: Open) -> None:
    """The second greedy token is the poison: whoever stops there never feels it.

    The second request shares the first one's prompt, and copies the page into which the first one
    wrote what the poison made of it.
    """
    (prompt,) = prompts_of(2 * PAGE + 3, seed=2)
    tokens, _ = hf_greedy(clean("qwen3"), prompt, 3)
    assert tokens.index(tokens[1]) == 1
    assert tokens[1] not in prompt
    told: list[tuple[int, int, int]] = []
    engine = open_engine(poisoned("qwen3", tokens[1]), max_batch_size=1)
    requests = [request(prompt, max_new_tokens=count) for count in (6, 2)]
    outputs = list(engine.stream(requests, lambda *token: told.append(token)))
    assert [output.error for output in outputs] == [NOT_FINITE, None]
    assert outputs[1].outputs[0].token_ids == tuple(tokens[:2])
    assert [token for index, _, token in told if index == 0] == tokens[:2]


def test_all_samples_of_a_request_end_with_one(open_engine: Open, lag: int) -> None:
    """Sixteen samples at a high temperature; some draw the poison, some are complete before."""
    (prompt,) = prompts_of(PAGE + 2)
    settings = {"max_new_tokens": 6, "temperature": 2.0, "n": 16, "seed": 3}
    found = drawn(open_engine(clean("qwen3")), [prompt], **settings)
    poison = next(t for t in found[9][1:-1] if t not in prompt and sum(t in d for d in found) < 4)
    engine = open_engine(poisoned("qwen3", poison), max_batch_size=4)
    other = request(prompt, max_new_tokens=3)
    outputs = engine.generate([request(prompt, **settings), other])
    assert [output.error for output in outputs] == [NOT_FINITE, None]
    assert_greedy(clean("qwen3"), [prompt], outputs[1].outputs)
    again = complete(engine, [prompt[:-1]], max_new_tokens=3)
    assert_greedy(clean("qwen3"), [prompt[:-1]], again)
    assert_clean(engine)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_pages_kept_for_a_poisoned_prompt_are_clean_when_they_are_dropped(
    open_engine: Open, lag: int, batch: int
) -> None:
    """The request in the middle needs the pages that the others, of one prompt, would share."""
    prompt, good = prompts_of(2 * PAGE + 3, 2 * PAGE + 3)
    poison = unused([prompt, good], drawn(open_engine(clean("qwen3")), [good], max_new_tokens=5))
    engine = open_engine(poisoned("qwen3", poison), max_batch_size=batch)
    bad = request([poison, *prompt], max_new_tokens=5, n=2)
    with few_pages(engine, 5):
        outputs = engine.generate([bad, request(good, max_new_tokens=5), bad])
        after = complete(engine, [good, good], max_new_tokens=5)
    assert [output.error for output in outputs] == [NOT_FINITE, None, NOT_FINITE]
    assert_greedy(clean("qwen3"), [good] * 3, [outputs[1].outputs[0], *after])
    assert_clean(engine)


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_request_that_fails_by_its_settings_fails_alone(
    open_engine: Open, lag: int, at: int, batch: int
) -> None:
    """Logits so large that only division by the least temperature leaves the range of fp32."""
    model = FAMILIES["qwen3"](**UNTIED)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e32)
    prompts = prompts_of(2 * PAGE + 3, 2 * PAGE + 1)
    engine = open_engine(model, max_batch_size=batch)
    greedy = drawn(engine, prompts, max_new_tokens=6)
    requests = [request(prompts[index], max_new_tokens=6) for index in (0, 1, 0)]
    cold = {"temperature": SCALES[0], "seed": 1, "n": 2}
    requests.insert(at, request(prompts[0], max_new_tokens=6, **cold))
    outputs = engine.generate(requests)
    assert [output.error for output in outputs] == [
        NOT_FINITE if index == at else None for index in range(4)
    ]
    found = [output.outputs[0].token_ids for output in outputs if output.error is None]
    assert found == [greedy[0], greedy[1], greedy[0]]
    assert drawn(engine, prompts, max_new_tokens=6) == greedy


@pytest.mark.parametrize("early", [1, 2, 3, 4])
def test_a_copy_of_a_page_leaves_out_what_poison_made_of_it(
    open_engine: Open, lag: int, early: int
) -> None:
    """The last request copies its page when the first has, perhaps, not been seen to fail yet."""
    prompt, other = prompts_of(2 * PAGE + 3, 5, seed=2)
    tokens, _ = hf_greedy(clean("qwen3"), prompt, 3)
    engine = open_engine(poisoned("qwen3", tokens[1]), max_batch_size=2)
    requests = [(prompt, 6), (other, early), (prompt, 2)]
    outputs = engine.generate([request(p, max_new_tokens=count) for p, count in requests])
    assert [output.error for output in outputs] == [NOT_FINITE, None, None]
    assert_greedy(clean("qwen3"), [other, prompt], [o.outputs[0] for o in outputs[1:]])
    assert_clean(engine)
