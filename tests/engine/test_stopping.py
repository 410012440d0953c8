"""How samples end: each EOS id, stop strings wherever they lie in tokens, lengths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion
from tests.support.engines import complete, ids_of, request, toy_tokenizer
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
PROMPT = prompts_of(9)[0]


def free_run(open_engine: Open, family: str = "qwen3", new: int = 30) -> Completion:
    """Return what is generated when nothing stops it."""
    return complete(open_engine(family), [PROMPT], max_new_tokens=new)[0]


def text_of(token_ids: tuple[int, ...]) -> str:
    return toy_tokenizer().decode(list(token_ids), skip_special_tokens=True)


def assert_cut(found: Completion, free: Completion, count: int, stop: str | int | None) -> None:
    """Fail unless `found` is the first `count` tokens of the free run, ended by `stop`."""
    assert found.token_ids == free.token_ids[:count]
    assert found.logprobs == pytest.approx(free.logprobs[:count], abs=1e-5)
    assert found.policy_logprobs == pytest.approx(free.policy_logprobs[:count], abs=1e-5)
    assert found.finish_reason == ("length" if stop is None else "stop")
    assert found.stop == stop


@pytest.mark.parametrize("family", FAMILIES)
def test_the_length_ends_it(family: str, open_engine: Open) -> None:
    free = free_run(open_engine, family)
    for count in (1, 2, 9):
        (found,) = complete(open_engine(family), [PROMPT], max_new_tokens=count)
        assert_cut(found, free, count, None)
        assert found.text == text_of(found.token_ids)


@pytest.mark.parametrize("position", [0, 1, 6, 7, 8])
def test_each_id_of_the_eos_set_ends_it(position: int, open_engine: Open) -> None:
    free = free_run(open_engine)
    end = free.token_ids[position]
    count = free.token_ids.index(end) + 1
    engine = open_engine("qwen3", eos=(510, end, 511))
    (found,) = complete(engine, [PROMPT], max_new_tokens=30)
    assert_cut(found, free, count, end)
    assert found.text == text_of(free.token_ids[: count - 1])


def test_the_first_of_several_eos_ids_ends_it(open_engine: Open) -> None:
    free = free_run(open_engine)
    ends = sorted({free.token_ids[12], free.token_ids[5], free.token_ids[20]})
    count = min(free.token_ids.index(end) for end in ends) + 1
    (found,) = complete(open_engine("qwen3", eos=ends), [PROMPT], max_new_tokens=30)
    assert_cut(found, free, count, free.token_ids[count - 1])


def test_eos_ignored(open_engine: Open) -> None:
    free = free_run(open_engine)
    engine = open_engine("qwen3", eos=free.token_ids[3:6])
    (found,) = complete(engine, [PROMPT], max_new_tokens=30, ignore_eos=True)
    assert_cut(found, free, 30, None)
    assert found.text == text_of(free.token_ids)


def test_eos_in_the_last_place_is_a_stop(open_engine: Open) -> None:
    free = free_run(open_engine)
    count = free.token_ids.index(free.token_ids[7]) + 1
    engine = open_engine("qwen3", eos=(free.token_ids[7],))
    (found,) = complete(engine, [PROMPT], max_new_tokens=count)
    assert_cut(found, free, count, free.token_ids[7])


def test_new_tokens_are_capped_by_the_longest_sequence(open_engine: Open) -> None:
    engine = open_engine("qwen3", max_seq_length=20)
    (found,) = complete(engine, [PROMPT], max_new_tokens=500)
    assert_cut(found, free_run(open_engine), 20 - len(PROMPT), None)


def spans(free: Completion) -> list[tuple[int, int]]:
    """Return [start, end) of each token's text in the whole."""
    lengths = [len(text_of(free.token_ids[:count])) for count in range(len(free.token_ids) + 1)]
    assert lengths == sorted(lengths)
    return list(pairwise(lengths))


def assert_stopped(found: Completion, free: Completion, stop: str) -> None:
    """Fail unless `found` ends with the token that completes the first `stop` of the free run."""
    whole = text_of(free.token_ids)
    at = whole.index(stop)
    count = next(i for i, (_, end) in enumerate(spans(free), 1) if end >= at + len(stop))
    assert_cut(found, free, count, stop)
    assert found.text == whole[:at]
    assert stop not in found.text


@pytest.mark.parametrize(
    ("family", "token", "shift"),
    [
        *(("qwen3", token, shift) for token in (0, 4, 11) for shift in (-1, 0, 1)),
        ("llama", 4, -1),
        ("gemma4", 11, 1),
    ],
)
def test_stops_that_do_not_end_where_tokens_end(
    family: str, token: int, shift: int, open_engine: Open
) -> None:
    free = free_run(open_engine, family)
    whole, (start, end) = text_of(free.token_ids), spans(free)[token]
    stop = whole[start : max(end + shift, start + 1)]
    (found,) = complete(open_engine(family), [PROMPT], max_new_tokens=30, stop=[stop])
    assert_stopped(found, free, stop)


def test_a_stop_inside_one_token(open_engine: Open) -> None:
    free = free_run(open_engine)
    wide = next(i for i, (start, end) in enumerate(spans(free)) if end - start >= 3)
    start, _ = spans(free)[wide]
    stop = text_of(free.token_ids)[start + 1 : start + 2]
    (found,) = complete(open_engine("qwen3"), [PROMPT], max_new_tokens=30, stop=[stop])
    assert_stopped(found, free, stop)


def test_a_stop_over_many_tokens(open_engine: Open) -> None:
    free = free_run(open_engine)
    stop = text_of(free.token_ids)[3:40]
    (found,) = complete(open_engine("qwen3"), [PROMPT], max_new_tokens=30, stop=[stop])
    assert_stopped(found, free, stop)


def test_two_stops_that_end_at_the_same_place(open_engine: Open) -> None:
    free = free_run(open_engine)
    whole = text_of(free.token_ids)
    long, short = whole[20:25], whole[22:25]
    assert whole.index(short) == 22
    for stops in ([long, short], [short, long]):
        (found,) = complete(open_engine("qwen3"), [PROMPT], max_new_tokens=30, stop=stops)
        assert_stopped(found, free, long)


def test_two_stops_in_one_token_and_one_that_never_comes(open_engine: Open) -> None:
    free = free_run(open_engine)
    start = next(start for start, end in spans(free) if end - start >= 3)
    whole = text_of(free.token_ids)
    first, second = whole[start : start + 2], whole[start + 2 : start + 3]
    assert whole.index(first) < whole.index(second)
    stops = ["no such text", second, first]
    (found,) = complete(open_engine("qwen3"), [PROMPT], max_new_tokens=30, stop=stops)
    assert_stopped(found, free, first)


def test_a_stop_that_never_comes(open_engine: Open) -> None:
    free = free_run(open_engine)
    (found,) = complete(open_engine("qwen3"), [PROMPT], max_new_tokens=30, stop=["no such text"])
    assert_cut(found, free, 30, None)
    assert found.text == text_of(free.token_ids)


def test_stops_are_each_requests_own(open_engine: Open) -> None:
    free = free_run(open_engine)
    stop = text_of(free.token_ids)[10:13]
    requests = [
        request(PROMPT, max_new_tokens=30, stop=[stop]),
        request(PROMPT, max_new_tokens=30),
        request(PROMPT, max_new_tokens=4, stop=["no such text"]),
    ]
    outputs = [output.outputs[0] for output in open_engine("qwen3").generate(requests)]
    assert_stopped(outputs[0], free, stop)
    assert_cut(outputs[1], free, 30, None)
    assert_cut(outputs[2], free, 4, None)


def test_samples_of_a_request_end_each_on_its_own(open_engine: Open) -> None:
    engine = open_engine("qwen3", eos=tuple(range(0, 512, 9)))
    (output,) = engine.generate([request(PROMPT, max_new_tokens=40, temperature=2.0, n=8, seed=1)])
    lengths = [len(completion.token_ids) for completion in output.outputs]
    assert len(set(lengths)) > 4
    for completion in output.outputs:
        assert len(completion.logprobs) == len(completion.policy_logprobs)
        assert len(completion.logprobs) == len(completion.token_ids)
        ended = completion.token_ids[-1] % 9 == 0
        assert completion.finish_reason == ("stop" if ended else "length")
        assert not any(token % 9 == 0 for token in completion.token_ids[:-1])


def test_what_is_sampled_after_an_end_is_dropped(open_engine: Open) -> None:
    """A row that ends makes room at once: later requests are as if it had never been there."""
    free = free_run(open_engine)
    engine = open_engine("qwen3", max_batch_size=2, eos=(free.token_ids[2],))
    prompts = [PROMPT, *prompts_of(5, 12, 20)]
    found = complete(engine, prompts, max_new_tokens=12, ignore_eos=False)
    alone = [complete(engine, [prompt], max_new_tokens=12)[0] for prompt in prompts]
    assert ids_of(found) == ids_of(alone)
    assert found[0].token_ids == free.token_ids[:3]
