"""On CUDA: fp32 ids and log-probabilities are the oracle's on every back end, with graphs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion
from tests.support.cuda import LIMITS, cast, tiny_on_cuda, wide_on_cuda
from tests.support.engines import (
    assert_greedy,
    complete,
    few_pages,
    ids_of,
    oracle_rows,
    request,
)
from tests.support.mutants import run_changed, shift_windows
from tests.support.oracle import hf_greedy
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, tiny_llama

pytestmark = pytest.mark.gpu
Open = Callable[..., Engine]
PROMPTS = prompts_of(1, 7, 8, 9, 15, 16, 17, 31, 33, 65)
families = pytest.mark.parametrize("family", FAMILIES)
plain = pytest.mark.parametrize("attention", ["dense", "flex"])
every = pytest.mark.parametrize("attention", ["dense", "flex", "triton"])


def open_on(open_engine: Open, model: Any, **config: Any) -> Engine:
    return open_engine(model, **LIMITS | config)


@plain
@families
def test_lengths_across_every_edge(family: str, attention: str, open_engine: Open) -> None:
    model = tiny_on_cuda(family)
    engine = open_on(open_engine, model, attention=attention)
    found = complete(engine, PROMPTS, max_new_tokens=40)
    assert_greedy(model, PROMPTS, found)
    assert engine.stats.graph_replays == engine.stats.decode_steps > 39
    assert engine.stats.eager_steps == 0


@families
def test_token_by_token_against_hugging_face(family: str, open_engine: Open) -> None:
    model = tiny_on_cuda(family)
    (found,) = complete(open_on(open_engine, model, attention="flex"), PROMPTS[3:4],
                        max_new_tokens=12)  # fmt: skip
    ids, logprobs = hf_greedy(model, PROMPTS[3], 12)
    assert list(found.token_ids) == ids
    assert found.logprobs == pytest.approx(logprobs, abs=1e-4)


@plain
@pytest.mark.parametrize("budget", [5, 33])
def test_prefill_in_chunks(budget: int, attention: str, open_engine: Open) -> None:
    model = tiny_on_cuda("gemma4")
    engine = open_on(open_engine, model, attention=attention, prefill_tokens=budget)
    assert_greedy(model, PROMPTS, complete(engine, PROMPTS, max_new_tokens=6))
    assert engine.stats.prefill_tokens == sum(len(p) for p in PROMPTS if len(p) > 1)


@plain
def test_preempted_sequences_are_the_oracles(attention: str, open_engine: Open) -> None:
    model = tiny_on_cuda("gemma4")
    engine = open_on(open_engine, model, attention=attention)
    with few_pages(engine, 12):
        found = complete(engine, PROMPTS[3:], max_new_tokens=40)
    assert engine.stats.preemptions > 0
    assert_greedy(model, PROMPTS[3:], found)


@plain
@families
def test_samples_share_pages_and_ends_are_seen_late(
    family: str, attention: str, open_engine: Open
) -> None:
    model = tiny_on_cuda(family)
    engine = open_on(open_engine, model, attention=attention, eos=tuple(range(5, 512, 40)))
    given = {"max_new_tokens": 30, "temperature": 1.0, "seed": 3}
    outputs = engine.generate([request(p, n=3, **given) for p in PROMPTS])
    assert engine.stats.prefill_tokens == sum(len(p) for p in PROMPTS if len(p) > 1)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        (alone,) = engine.generate([request(prompt, n=3, **given)])
        assert ids_of(alone.outputs) == ids_of(output.outputs)
        for completion in output.outputs:
            assert not any(token % 40 == 5 for token in completion.token_ids[:-1])


@pytest.mark.parametrize("top_k", [0, 40])
@pytest.mark.parametrize("vocab", [512, 6000])
def test_sampled_ids_do_not_depend_on_back_end_or_device(
    vocab: int, top_k: int, open_engine: Open
) -> None:
    given = {"max_new_tokens": 20, "temperature": 1.0, "top_k": top_k, "seed": 5}
    model = tiny_llama(vocab_size=vocab)
    on_cpu = ids_of(complete(open_engine(model, max_seq_length=128), PROMPTS, **given))
    on_cuda = deepcopy(model).to("cuda")
    for attention in ("dense", "flex"):
        engine = open_on(open_engine, on_cuda, attention=attention)
        assert ids_of(complete(engine, PROMPTS, **given)) == on_cpu


def assert_near(model: PreTrainedModel, exact: PreTrainedModel, found: list[Completion]) -> None:
    """Against the oracle in fp64 our bf16 may err at most twice as much as the oracle's own."""
    ours, theirs = [], []
    for prompt, completion in zip(PROMPTS, found, strict=True):
        ids = completion.token_ids
        index = torch.tensor(ids)[:, None]
        rows = [oracle_rows(m, prompt, ids).log_softmax(-1) for m in (exact, model)]
        right, bf16 = (row.gather(1, index)[:, 0] for row in rows)
        ours.append((torch.tensor(completion.logprobs) - right).abs())
        theirs.append((bf16 - right).abs())
    error, allowed = torch.cat(ours).mean(), torch.cat(theirs).mean()
    assert float(error) < 2 * float(allowed) + 0.01, (float(error), float(allowed))


@every
@families
def test_bf16_is_as_near_to_the_oracle_as_bf16_can_be(
    family: str, attention: str, open_engine: Open
) -> None:
    model = wide_on_cuda(family)
    engine = open_on(open_engine, model, attention=attention)
    found = complete(engine, PROMPTS, max_new_tokens=20)
    assert_near(model, wide_on_cuda(family, torch.float64), found)


@every
@pytest.mark.parametrize("ratio", [1, 3, 8])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_any_head_dim_and_group(
    head_dim: int, ratio: int, attention: str, open_engine: Open
) -> None:
    """Query heads a kv head need not be a power of two, and heads may be wide."""
    sizes = {"hidden_size": 384, "num_attention_heads": 2 * ratio, "num_hidden_layers": 2}
    model = cast(tiny_llama(head_dim=head_dim, initializer_range=0.1, **sizes), torch.bfloat16)
    exact = cast(deepcopy(model), torch.float64)
    engine = open_on(open_engine, model, attention=attention)
    assert_near(model, exact, complete(engine, PROMPTS, max_new_tokens=20))


@every
@pytest.mark.parametrize("tokens", [-1, 0, 1])
def test_a_window_off_by_one_is_seen(tokens: int, attention: str, open_engine: Open) -> None:
    dtype = torch.bfloat16 if attention == "triton" else torch.float32
    model = wide_on_cuda("gemma4", dtype)
    right = complete(open_on(open_engine, model, attention=attention), PROMPTS, max_new_tokens=20)
    engine = open_on(open_engine, model, attention=attention)
    shift_windows(engine, tokens)
    found = complete(engine, PROMPTS, max_new_tokens=20)
    assert (ids_of(found) == ids_of(right)) == (tokens == 0)


@every
@families
def test_a_wrong_page_list_is_seen(family: str, attention: str, open_engine: Open) -> None:
    dtype = torch.bfloat16 if attention == "triton" else torch.float32
    model = wide_on_cuda(family, dtype)
    prompts = PROMPTS[-3:]

    def nothing(table: torch.Tensor) -> None:
        """Leave it as it is."""

    def across_rows(table: torch.Tensor) -> None:
        table[[0, 1], 1] = table[[1, 0], 1]

    found = [
        ids_of(run_changed(open_on(open_engine, model, attention=attention), prompts, 5, change,
                           max_new_tokens=20))
        for change in (nothing, nothing, across_rows)
    ]  # fmt: skip
    assert found[0] == found[1] != found[2]
