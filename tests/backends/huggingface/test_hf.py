"""model.generate as a rollout: the module's own log-probabilities, the engine's own samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.engine.requests.outputs import Completion
from flexinfer.errors import EnvironmentUnfit, UsageError
from tests.support.engines import request, tiny, toy_tokenizer
from tests.support.prompts import TOLERANCE
from tests.support.rollouts import PROMPTS, fresh, live, own_logits, requests, samples, with_lora
from tests.support.tiny import FAMILIES

MEDIAN = 1e-5
"""Nats; a cache, padding and a batch sum in another order than the oracle's one forward."""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "n": 2},
    {"temperature": 0.6, "top_p": 0.7},
    {"temperature": 1.5, "min_p": 0.1, "top_k": 20},
    {"temperature": 0.8, "repetition_penalty": 1.4},
]


def sampled_from(
    logits: torch.Tensor, prompt: Sequence[int], token_ids: Sequence[int], params: dict[str, Any]
) -> torch.Tensor:
    """Return transformers' own scores [len(token_ids), V] after its processors and warpers."""
    rows = []
    for at, row in enumerate(logits):
        known = torch.tensor([[*prompt, *token_ids[:at]]])
        processors = LogitsProcessorList()
        if "repetition_penalty" in params:
            processors.append(RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
        processors.append(TemperatureLogitsWarper(params.get("temperature", 1.0)))
        if "top_k" in params:
            processors.append(TopKLogitsWarper(params["top_k"]))
        if "top_p" in params:
            processors.append(TopPLogitsWarper(params["top_p"]))
        if "min_p" in params:
            processors.append(MinPLogitsWarper(params["min_p"]))
        rows.append(processors(known, row[None])[0])
    return torch.stack(rows)


def assert_own(
    model: Any, prompt: Sequence[int], found: Completion, params: dict[str, Any]
) -> None:
    """Fail unless both log-probabilities are those of the module's own forward, in fp32."""
    ids = torch.tensor(found.token_ids)[:, None]
    logits = own_logits(model, prompt, found.token_ids)
    policy = (logits / params.get("temperature", 1.0)).log_softmax(-1).gather(1, ids)[:, 0]
    assert_near(found.policy_logprobs, policy)
    scores = sampled_from(logits, prompt, found.token_ids, params)
    drawn = scores.log_softmax(-1).gather(1, ids)[:, 0]
    assert_near(found.logprobs, drawn)


def assert_near(found: Sequence[float], expected: torch.Tensor) -> None:
    """Fail unless log-probabilities are the expected ones but for fp32's rounding."""
    gaps = (torch.tensor(found) - expected).abs()
    assert gaps.max() <= TOLERANCE, gaps
    assert gaps.median() <= MEDIAN, gaps


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_the_modules_own(family: str, adapted: bool) -> None:
    module = fresh(family)
    model = with_lora(module) if adapted else module
    backend = live("hf", module, model)
    for params in SETTINGS:
        found = samples(backend, requests(8, seed=3, **params))
        for prompt, completions in zip(PROMPTS, found, strict=True):
            assert len(completions) == params.get("n", 1)
            for completion in completions:
                assert len(completion.token_ids) == 8
                assert_own(model, prompt, completion, params)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_are_the_engines_own(family: str) -> None:
    hf, flex = (live(name, tiny(family)) for name in ("hf", "flex"))
    for params in SETTINGS:
        asked = requests(10, seed=7, **params)
        ids = [
            [[c.token_ids for c in group] for group in samples(backend, asked)]
            for backend in (hf, flex)
        ]
        assert ids[0] == ids[1], params


def test_samples_differ_from_each_other_and_from_call_to_call() -> None:
    backend = live("hf", tiny("qwen3"))
    asked = requests(6, temperature=1.0, n=3)
    first, second = (samples(backend, asked) for _ in range(2))
    ids = [c.token_ids for group in (*first, *second) for c in group]
    assert len(set(ids)) == len(ids)


def test_rows_of_a_batch_keep_their_own_settings() -> None:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.3, "seed": 1, "n": 2},
        {"temperature": 0.5, "top_p": 0.5, "seed": 1, "max_new_tokens": 3},
        {"temperature": 0.9, "repetition_penalty": 1.7, "seed": 9, "max_new_tokens": 9},
    ]
    asked = [request(p, **{"max_new_tokens": 6} | k) for p, k in zip(PROMPTS, kinds, strict=True)]
    together = samples(live("hf", tiny("llama"), max_batch_size=8), asked)
    alone = [samples(live("hf", tiny("llama"), max_batch_size=1), [one])[0] for one in asked]
    for one, other in zip(together, alone, strict=True):
        assert [c.token_ids for c in one] == [c.token_ids for c in other]
    assert [len(group[0].token_ids) for group in together] == [6, 6, 3, 9]


def test_a_row_ends_at_an_eos_and_the_others_go_on() -> None:
    greedy = samples(live("hf", tiny("qwen3")), requests(10))
    eos = greedy[0][0].token_ids[4]
    found = samples(live("hf", tiny("qwen3"), eos=[eos]), requests(10))
    for before, after in zip(greedy, found, strict=True):
        ids, cut = before[0].token_ids, after[0]
        if eos not in ids:
            assert (cut.token_ids, cut.finish_reason) == (ids, "length")
            continue
        end = ids.index(eos) + 1
        assert (cut.token_ids, cut.finish_reason, cut.stop) == (ids[:end], "stop", eos)
        assert cut.text == toy_tokenizer().decode(list(ids[: end - 1]), skip_special_tokens=True)
        assert len(cut.logprobs) == len(cut.policy_logprobs) == end
    assert any(eos not in group[0].token_ids for group in greedy)
    ignoring = samples(live("hf", tiny("qwen3"), eos=[eos]), requests(10, ignore_eos=True))
    assert [g[0].token_ids for g in ignoring] == [g[0].token_ids for g in greedy]


def test_a_stop_string_ends_a_row() -> None:
    backend = live("hf", tiny("qwen3"))
    text = samples(backend, requests(10))[2][0].text
    stop = text[len(text) // 2 :][:3]
    found = samples(backend, requests(10, stop=(stop,)))[2][0]
    assert found.stop == stop
    assert found.finish_reason == "stop"
    assert found.text == text[: text.index(stop)]


def test_what_the_checkpoint_says_of_generation_does_not_count() -> None:
    module = fresh("qwen3")
    plain = samples(live("hf", module), requests(6))
    module.generation_config = GenerationConfig(
        do_sample=True, top_k=1, repetition_penalty=9.0, eos_token_id=plain[0][0].token_ids[0]
    )
    module.generation_config.suppress_tokens = [plain[0][0].token_ids[1]]
    found = samples(live("hf", module), requests(6))
    assert [g[0].token_ids for g in found] == [g[0].token_ids for g in plain]


def test_requests_that_cannot_be_served_carry_their_error() -> None:
    asked = [request(ids, max_new_tokens=4) for ids in ((), (1,) * 96, (99999,), (5, 6))]
    outputs = live("hf", tiny("qwen3")).generate(asked)
    assert [bool(output.error) for output in outputs] == [True, True, True, False]
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert "--max-seq-length 96" in str(outputs[1].error)
    assert len(outputs[3].outputs[0].token_ids) == 4


def test_a_sequence_ends_where_it_is_longest() -> None:
    found = samples(live("hf", tiny("qwen3"), max_seq_length=24), requests(40))
    assert [len(g[0].token_ids) for g in found] == [24 - len(p) for p in PROMPTS]
    assert {g[0].finish_reason for g in found} == {"length"}


def test_logits_that_are_not_finite_are_an_error() -> None:
    module = fresh("qwen3")
    with torch.no_grad():
        module.get_input_embeddings().weight[9] = torch.nan
    outputs = live("hf", module).generate([*requests(4)[:1], *requests(4)[1:2]])
    assert all("not finite" in str(output.error) for output in outputs)  # tied: every logit is


def test_counters_and_notices() -> None:
    backend = live("hf", tiny("qwen3"), max_batch_size=4)
    samples(backend, requests(5))
    stats = backend.stats
    assert stats.prefill_tokens == sum(map(len, PROMPTS))
    assert (stats.prefill_steps, stats.decode_steps, stats.eager_steps) == (1, 4, 4)
    assert stats.decode_tokens == 4 * len(PROMPTS)
    assert len(stats.ttft_s) == 4
    assert len(stats.step_s) == 4
    assert any("transformers' eager" in line for line in backend.notices)


def test_settings_of_the_engine_are_refused() -> None:
    with pytest.raises(UsageError, match="--page-size means nothing to hf"):
        live("hf", tiny("qwen3"), page_size=16)
    with pytest.raises(UsageError, match="--attention means nothing to hf"):
        live("hf", tiny("qwen3"), attention="dense")
    with pytest.raises(UsageError, match="--no-fa4-prefill means nothing to hf"):
        live("hf", tiny("qwen3"), fa4_prefill=False)


def test_compilation_is_for_a_gpu() -> None:
    with pytest.raises(EnvironmentUnfit, match="--compile-mode"):
        live("hf", tiny("qwen3"), options=RolloutOptions(compile_mode="default"))


def test_a_closed_one_serves_nothing() -> None:
    backend = live("hf", tiny("qwen3"))
    backend.close()
    backend.close()
    with pytest.raises(UsageError, match="closed"):
        backend.generate(requests())
