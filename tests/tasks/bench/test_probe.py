"""What the output gate asks the engine: a first batch as it will be timed, some of it greedy."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.measure.probe import LONGEST, NEW_TOKENS, PICKS, probe
from flexinfer.tasks.bench.measure.rounds import requests_for
from flexinfer.tasks.workload import workload


def asked(n_prompts: int, batch_size: int, **given: Any) -> tuple[list[Any], list[int], Any]:
    """Return the probe's requests, the checked ones and those of the workload."""
    config = BenchConfig(n_prompts=n_prompts, **{"max_new_tokens": 100} | given)
    prompts = workload(n_prompts, 5000, config.lengths)
    requests, picks = probe(config, prompts, batch_size)
    return requests, picks, requests_for(config, prompts, NEW_TOKENS)


def test_all_others_are_what_will_be_timed_but_short() -> None:
    requests, picks, timed = asked(64, 16)
    assert len(requests) == 16
    rest = [n for n in range(16) if n not in picks]
    assert [requests[n] for n in rest] == [timed[n] for n in rest]
    assert {requests[n].sampling.temperature for n in rest} == {1.0}


def test_checked_ones_are_greedy_and_of_several_lengths() -> None:
    requests, picks, timed = asked(64, 64, ignore_eos=False)
    checked = [requests[n] for n in picks]
    lengths = sorted(len(request.prompt_token_ids) for request in checked)
    all_lengths = sorted(len(request.prompt_token_ids) for request in timed)
    assert len(picks) == PICKS
    assert lengths[0] == all_lengths[0]
    assert lengths[0] < lengths[1] < lengths[2] == all_lengths[-1]
    assert {(r.sampling.temperature, r.sampling.ignore_eos) for r in checked} == {(0.0, True)}


@pytest.mark.parametrize("n_prompts", [1, 2, 3, 4, 5, 64])
def test_one_reaches_the_longest_context_of_the_workload(n_prompts: int) -> None:
    requests, picks, timed = asked(n_prompts, 64)
    longest = max(len(request.prompt_token_ids) for request in timed)
    reach = max(len(requests[n].prompt_token_ids) for n in picks) + NEW_TOKENS
    assert reach == longest + 100
    assert len(requests) == n_prompts
    assert len(picks) == min(n_prompts, PICKS)
    for n, request in enumerate(requests):
        known = timed[n].prompt_token_ids
        assert request.prompt_token_ids[: len(known)] == known


def test_checked_prompts_are_bounded() -> None:
    requests, picks, _ = asked(4, 64, prompt_length="3000")
    assert [len(requests[n].prompt_token_ids) for n in picks] == [LONGEST] * 4


def test_no_more_tokens_than_the_workload_has() -> None:
    requests, picks, timed = asked(4, 64, max_new_tokens=3)
    assert {request.sampling.max_new_tokens for request in requests} == {3}
    longest = max(len(request.prompt_token_ids) for request in timed)
    assert max(len(requests[n].prompt_token_ids) for n in picks) == longest


@pytest.mark.parametrize(("batch", "samples", "count"), [(1, 1, 4), (16, 3, 6), (256, 1, 64)])
def test_the_batch_is_as_full_as_when_timed(batch: int, samples: int, count: int) -> None:
    requests, _, _ = asked(64, batch, n_samples=samples)
    assert len(requests) == count
    assert {request.sampling.n for request in requests} == {samples}
