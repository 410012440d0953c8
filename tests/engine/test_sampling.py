"""Seeds, conventions and definitions of sampling, seen through the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flexinfer.config import EngineConfig, SamplingParams, resolve_sampling
from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion
from flexinfer.errors import UsageError
from tests.support.engines import (
    assert_greedy,
    complete,
    few_pages,
    ids_of,
    loaded,
    request,
    tiny,
)
from tests.support.oracle import hf_logits
from tests.support.prompts import TOLERANCE, prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
PROMPTS = prompts_of(9, 3, 17, 30)
RANDOM: dict[str, Any] = {"max_new_tokens": 15, "temperature": 1.0}
CUT: dict[str, Any] = RANDOM | {"top_k": 40, "top_p": 0.9, "min_p": 0.01}
PENALISED: dict[str, Any] = CUT | {"repetition_penalty": 1.4}
kinds = pytest.mark.parametrize("given", [RANDOM, CUT, PENALISED], ids=["random", "cut", "penalty"])


@pytest.mark.parametrize(
    ("family", "given"),
    [("qwen3", RANDOM), ("qwen3", CUT), *((family, PENALISED) for family in FAMILIES)],
    ids=["qwen3-random", "qwen3-cut", *FAMILIES],
)
def test_a_seed_gives_the_same_samples_alone_and_in_any_company(
    family: str, given: dict[str, Any], open_engine: Open
) -> None:
    requests = [request(p, seed=10 + i, n=2, **given) for i, p in enumerate(PROMPTS)]
    together = open_engine(family).generate(requests)
    backwards = open_engine(family, max_batch_size=3).generate(requests[::-1])[::-1]
    for index, output in enumerate(together):
        (alone,) = open_engine(family, max_batch_size=1).generate([requests[index]])
        ids = ids_of(output.outputs)
        assert ids_of(alone.outputs) == ids
        assert ids_of(backwards[index].outputs) == ids
        assert ids[0] != ids[1]


@kinds
def test_a_seed_survives_preemption(given: dict[str, Any], open_engine: Open) -> None:
    engine = open_engine("llama")
    requests = [request(p, seed=3, **given) for p in PROMPTS]
    with_room = engine.generate(requests)
    with few_pages(engine, 9):
        without = engine.generate(requests)
    assert engine.stats.preemptions > 0
    assert [ids_of(o.outputs) for o in without] == [ids_of(o.outputs) for o in with_room]


def test_a_greedy_row_does_not_care_about_its_neighbours_sampler(open_engine: Open) -> None:
    plain = {"max_new_tokens": 15}
    requests = [request(p, **plain) for p in PROMPTS]
    for extra in ([], [RANDOM], [CUT], [PENALISED], [RANDOM, PENALISED]):
        company = [request(p, seed=1, **given) for p in PROMPTS[:2] for given in extra]
        outputs = open_engine("qwen3").generate([*requests, *company])
        assert_greedy("qwen3", PROMPTS, [output.outputs[0] for output in outputs[:4]])
        seeded = [output.outputs[0].token_ids for output in outputs[4:]]
        assert seeded == [
            open_engine("qwen3").generate([one])[0].outputs[0].token_ids for one in company
        ]


def test_greedy_is_temperature_zero_whatever_else_is_given(open_engine: Open) -> None:
    given = {"max_new_tokens": 12, "temperature": 0.0, "top_k": 3, "top_p": 0.2, "min_p": 0.5}
    assert_greedy("qwen3", PROMPTS, complete(open_engine("qwen3"), PROMPTS, **given))


def test_without_a_seed_calls_and_requests_differ(open_engine: Open) -> None:
    engine, prompt = open_engine("qwen3"), PROMPTS[0]
    calls = [complete(engine, [prompt, prompt], **RANDOM) for _ in range(3)]
    assert len({ids for call in calls for ids in ids_of(call)}) == 6


def test_an_engine_with_the_same_seed_repeats_itself() -> None:
    def run(seed: int) -> list[list[tuple[int, ...]]]:
        config = EngineConfig(max_batch_size=4, max_seq_length=96, seed=seed)
        with Engine(loaded(tiny("qwen3")), config) as engine:
            return [ids_of(complete(engine, PROMPTS, **RANDOM)) for _ in range(2)]

    assert run(0) == run(0)
    assert run(0) != run(1)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_any_seed_will_do(seed: int, open_engine: Open) -> None:
    engine = open_engine("qwen3")
    first, second = (complete(engine, PROMPTS, seed=seed, **RANDOM) for _ in range(2))
    assert ids_of(first) == ids_of(second)


@pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": -1}, {}])
def test_top_k_off_is_off(off: dict[str, int], open_engine: Open) -> None:
    """A sampled token must come from beyond any small k, and 16 samples must differ."""
    engine = open_engine("qwen3")
    (output,) = engine.generate([request(PROMPTS[0], n=16, seed=0, **RANDOM | off)])
    assert len(set(ids_of(output.outputs))) == 16
    row = hf_logits(tiny("qwen3"), PROMPTS[0])[-1]
    ranks = [int((row > row[c.token_ids[0]]).sum()) for c in output.outputs]
    assert max(ranks) >= 5
    (again,) = engine.generate([request(PROMPTS[0], n=16, seed=0, **RANDOM)])
    assert again == output


def test_top_k_one_is_greedy(open_engine: Open) -> None:
    given = RANDOM | {"top_k": 1}
    found = complete(open_engine("qwen3"), PROMPTS, **given)
    greedy = complete(open_engine("qwen3"), PROMPTS, max_new_tokens=15)
    assert ids_of(found) == ids_of(greedy)
    assert all(logprob == pytest.approx(0.0) for c in found for logprob in c.logprobs)


@pytest.mark.parametrize("top_k", [-5, -2])
def test_other_negatives_are_refused(top_k: int) -> None:
    with pytest.raises(UsageError, match=r"--top-k is -\d; allowed: 0 or -1 \(off\)"):
        SamplingParams(top_k=top_k)


def test_a_checkpoints_defaults_yield_to_what_is_given() -> None:
    """A generation_config with top_k 1 makes sampling greedy, unless top_k is given."""
    sampler = {"do_sample": True, "top_k": 1, "temperature": 0.1}
    with Engine(loaded(tiny("qwen3"), generation=sampler)) as engine:
        assert engine.generation_config == sampler

        def samples(given: dict[str, Any]) -> set[tuple[int, ...]]:
            params = resolve_sampling(given, engine.generation_config)
            given = {"n": 16, "seed": 0, "max_new_tokens": 8}
            values = {f: getattr(params, f) for f in ("temperature", "top_k", "top_p", "min_p")}
            (output,) = engine.generate([request(PROMPTS[0], **values | given)])
            return set(ids_of(output.outputs))

        assert len(samples({})) == 1
        for off in (0, -1):
            assert len(samples({"temperature": 1.0, "top_k": off})) == 16
        assert len(samples({"temperature": 1.0, "top_k": None})) == 1
        assert len(samples({"temperature": 1.0, "top_k": 40})) > 8


def hf_rows(prompt: Sequence[int], found: Completion, given: dict[str, Any]) -> tuple[Any, Any]:
    """Return (sampled, policy) log-probabilities of each token as transformers would have them."""
    ids = [*prompt, *found.token_ids]
    logits = hf_logits(tiny("qwen3"), ids)
    sampled, policy = [], []
    for at, token in enumerate(found.token_ids, len(prompt)):
        row = logits[at - 1 : at]
        heat = given.get("temperature", 0.0) or 1.0
        policy.append((row / heat).log_softmax(-1)[0, token])
        if "repetition_penalty" in given:
            processor = RepetitionPenaltyLogitsProcessor(given["repetition_penalty"])
            row = processor(torch.tensor([ids[:at]]), row.clone())
        row = row / heat
        if given.get("temperature"):
            row = TopKLogitsWarper(given["top_k"])(None, row) if "top_k" in given else row
            row = TopPLogitsWarper(given["top_p"])(None, row) if "top_p" in given else row
            row = MinPLogitsWarper(given["min_p"])(None, row) if "min_p" in given else row
        sampled.append(row.log_softmax(-1)[0, token])
    return torch.stack(sampled), torch.stack(policy)


@pytest.mark.parametrize(
    "given",
    [
        {"max_new_tokens": 15},
        {"max_new_tokens": 15, "repetition_penalty": 1.4},
        RANDOM,
        RANDOM | {"temperature": 0.6},
        CUT | {"temperature": 1.7},
        PENALISED,
    ],
    ids=str,
)
def test_logprobs_are_what_they_are_called(given: dict[str, Any], open_engine: Open) -> None:
    found = complete(open_engine("qwen3"), PROMPTS, seed=8, **given)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        sampled, policy = hf_rows(prompt, completion, given)
        values = torch.tensor(completion.logprobs), torch.tensor(completion.policy_logprobs)
        torch.testing.assert_close(values[0], sampled, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(values[1], policy, atol=TOLERANCE, rtol=0)
        differ = bool((values[0] - values[1]).abs().max() > 1e-3)
        assert differ == any(name in given for name in ("top_k", "repetition_penalty"))


def test_the_penalty_counts_prompt_and_generated_tokens(open_engine: Open) -> None:
    """A strong penalty forbids repetition; a slot's earlier tenant leaves nothing behind."""
    engine = open_engine("qwen3", max_batch_size=1)
    given = {"max_new_tokens": 40, "repetition_penalty": 1e6}
    for prompt in (*PROMPTS, PROMPTS[0]):
        (found,) = complete(engine, [prompt], **given)
        everything = [*prompt, *found.token_ids]
        assert len(set(found.token_ids)) == 40
        assert not set(found.token_ids) & set(prompt), everything
    fresh = complete(open_engine("qwen3"), [PROMPTS[0]], **given)
    assert ids_of(fresh) == [found.token_ids]


DRAWS = 1000


@pytest.mark.parametrize("given", [{"top_k": 6}, {"top_k": 12, "min_p": 0.2, "temperature": 1.5}])
def test_first_tokens_follow_transformers_probabilities(
    given: dict[str, Any], open_engine: Open
) -> None:
    settings = {"temperature": 1.0, "max_new_tokens": 1} | given
    engine = open_engine("qwen3", max_batch_size=DRAWS, max_seq_length=16)
    (output,) = engine.generate([request(PROMPTS[0], n=DRAWS, seed=2, **settings)])
    row = hf_logits(tiny("qwen3"), PROMPTS[0])[-1:] / settings["temperature"]
    row = TopKLogitsWarper(given["top_k"])(None, row)
    row = MinPLogitsWarper(given["min_p"])(None, row) if "min_p" in given else row
    expected = row.softmax(-1)[0].double() * DRAWS
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in output.outputs]), minlength=512)
    assert not counts[expected == 0].any()
    kept = expected > 0
    assert 3 < int(kept.sum()) <= given["top_k"]
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert float(statistic) < 35
