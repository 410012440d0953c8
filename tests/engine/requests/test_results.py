"""Collecting tokens into completions: stop strings against any tokenisation, texts, order."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.config import SamplingParams
from flexinfer.engine.requests.outputs import Completion, Request
from flexinfer.engine.requests.results import Results, Sample
from tests.support.engines import toy_tokenizer

EOS = 1
WORDS = [i for i in range(4, 512) if set(toy_tokenizer().convert_ids_to_tokens(i)) <= set("ab|")]
ACCENT = toy_tokenizer()("é→🙂", add_special_tokens=False)["input_ids"]


def collect(token_ids: list[int], **sampling: object) -> tuple[Completion, int]:
    """Feed tokens until the sample ends; return its completion and how many it took."""
    params = SamplingParams(max_new_tokens=len(token_ids), **sampling)
    results = Results({0: Request(prompt_token_ids=(9,))}, toy_tokenizer(), {EOS, 2})
    sample = Sample(0, 0, params, 0, params.max_new_tokens)
    taken = next(i for i, t in enumerate(token_ids, 1) if results.add(sample, t, -i, -2 * i))
    output = results.complete(sample)
    assert output is not None
    completion = output.outputs[0]
    assert completion.logprobs == tuple(range(-1, -taken - 1, -1))
    assert completion.policy_logprobs == tuple(range(-2, -2 * taken - 1, -2))
    return completion, taken


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=25),
    st.lists(st.text("ab|", min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_the_first_stop_ends_any_text(token_ids: list[int], stops: list[str]) -> None:
    decode = toy_tokenizer().decode
    found, taken = collect(token_ids, stop=stops)
    before = decode(token_ids[: taken - 1])
    assert not any(stop in before for stop in stops)
    text = decode(token_ids[:taken])
    here = [(text.index(stop), stop) for stop in stops if stop in text]
    if here:
        assert (found.finish_reason, found.stop) == ("stop", min(here)[1])
        assert found.text == text[: min(here)[0]]
    else:
        assert (found.finish_reason, found.stop) == ("length", None)
        assert (found.text, taken) == (text, len(token_ids))


@pytest.mark.parametrize("stop", ["é", "→", "🙂", "é→", "→🙂"])
def test_a_stop_of_characters_over_several_tokens(stop: str) -> None:
    found, taken = collect([*ACCENT, 300, 301], stop=[stop])
    text = "é→🙂"
    assert found.text == text[: text.index(stop)]
    assert found.stop == stop
    assert taken == len(text[: text.index(stop) + len(stop)].encode())


def test_a_stop_with_skipped_tokens_in_its_middle() -> None:
    a, b = toy_tokenizer()("ab", add_special_tokens=False)["input_ids"]
    found, taken = collect([a, *[EOS] * 60, b, a, a], stop=["ab"], ignore_eos=True)
    assert (found.text, found.stop, taken) == ("", "ab", 62)


@pytest.mark.parametrize("eos", [EOS, 2])
def test_eos_wins_over_a_stop_that_is_not_complete(eos: int) -> None:
    a = toy_tokenizer()("a", add_special_tokens=False)["input_ids"]
    found, _ = collect([*a, eos, *a], stop=["ab"])
    assert (found.text, found.stop, found.token_ids) == ("a", eos, (*a, eos))


class Watched:
    """The toy tokenizer, counting how often it decodes."""

    def __init__(self) -> None:
        self.inner, self.decoded = toy_tokenizer(), 0
        self.added_tokens_decoder = self.inner.added_tokens_decoder

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        self.decoded += 1
        return self.inner.decode(*args, **kwargs)


def test_a_text_is_decoded_when_it_is_read_and_only_once() -> None:
    watched, params = Watched(), SamplingParams(max_new_tokens=2)
    results = Results({0: Request(prompt_token_ids=(9,))}, watched, {EOS})
    sample = Sample(0, 0, params, 0, 2)
    assert [results.add(sample, token, -1.0, -1.0) for token in (300, 301)] == [False, True]
    output = results.complete(sample)
    assert output is not None
    assert watched.decoded == 0
    assert output.outputs[0].text == output.outputs[0].text == toy_tokenizer().decode([300, 301])
    assert watched.decoded == 1


def test_a_text_that_waits_is_as_one_that_is_there() -> None:
    rest: dict[str, Any] = {"token_ids": (5,), "logprobs": (-1.0,), "policy_logprobs": (-1.0,)}
    rest["finish_reason"] = "length"

    def late() -> Completion:
        return Completion(text=lambda: "ab", **rest)

    there = Completion(text="ab", **rest)
    assert late() == there
    assert late() != Completion(text="ac", **rest)
    assert hash(late()) == hash(there)
    assert repr(late()) == repr(there)
    assert pickle.loads(pickle.dumps(late())) == there
    assert replace(late(), token_ids=(6,)).text == asdict(late())["text"] == "ab"
    with pytest.raises(TypeError, match="text"):
        Completion(**rest)


def test_a_request_is_complete_with_its_last_sample_in_order() -> None:
    requests = {
        3: Request(prompt_token_ids=(9,), sampling=SamplingParams(n=3)),
        5: Request(prompt_token_ids=(8,)),
    }
    results = Results(requests, toy_tokenizer(), set())
    samples = [Sample(3, n, requests[3].sampling, 0, 1) for n in range(3)]
    other = Sample(5, 0, requests[5].sampling, 0, 1)
    outputs = []
    for token, sample in enumerate((samples[2], other, samples[0], samples[1]), 300):
        assert results.add(sample, token, 0.0, 0.0)
        outputs.append(results.complete(sample))
    assert [output and output.index for output in outputs] == [None, 5, None, 3]
    assert [c.token_ids for c in outputs[3].outputs] == [(302,), (303,), (300,)]
    assert outputs[3].prompt_token_ids == (9,)
