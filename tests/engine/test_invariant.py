"""--batch-invariant: the same bits whoever shares the batch, however prompts are chunked."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from flexinfer.attention.cache import bytes_per_page
from flexinfer.engine import setup
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory
from tests.support.engines import assert_greedy, complete, machinery, make_engine, request
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

PROMPTS = prompts_of(40, 3, 17, 8, 1, 33, 9, 26)
SAMPLED: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 5}


def answers(config: dict[str, Any], family: str, sizes: tuple[int, ...]) -> list[list[Any]]:
    """Return the completions of each prompt: in batches of each size, in an order of their own."""
    found: list[list[Any]] = [[] for _ in PROMPTS]
    with make_engine(family, **config) as engine:
        for size in sizes:
            order = random.Random(size).sample(range(len(PROMPTS)), len(PROMPTS))
            for at in range(0, len(order), size):
                batch = order[at : at + size]
                for place, one in zip(
                    batch, complete(engine, [PROMPTS[i] for i in batch], **SAMPLED), strict=True
                ):
                    found[place].append(one)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_who_shares_the_batch_does_not_matter(family: str) -> None:
    found = answers({"batch_invariant": True}, family, (1, 2, 3, 5, 8))
    for budget, rows in ((32, 8), (48, 4)):
        config = {"batch_invariant": True, "prefill_tokens": budget, "max_batch_size": rows}
        for one, more in zip(found, answers(config, family, (8,)), strict=True):
            one += more
    for one in found:
        assert len(one) == 7
        assert all(other == one[0] for other in one)


def test_without_it_the_last_bits_differ() -> None:
    found = answers({}, "qwen3", (1, 8))
    assert any(one[0].logprobs != one[1].logprobs for one in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_oracle_all_the_same(family: str) -> None:
    with make_engine(family, batch_invariant=True) as engine:
        assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=12))


def test_samples_of_one_prompt_are_those_of_it_alone() -> None:
    with make_engine("gemma4", batch_invariant=True) as engine:
        wanted = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}
        (together,) = engine.generate([request(PROMPTS[0], n=4, **wanted)])
        (fewer,) = engine.generate([request(PROMPTS[0], n=2, **wanted)])
        (alone,) = engine.generate([request(PROMPTS[0], **wanted)])
        assert together.outputs[:2] == fewer.outputs
        assert together.outputs[:1] == alone.outputs


def test_pages_for_a_part_of_the_batch_are_refused() -> None:
    with make_engine("qwen3") as engine:
        pool = machinery(engine).scheduler.pool
        specs = machinery(engine).programs.decode_decoder.specs
        page_bytes = bytes_per_page(specs, pool.page_size, torch.float32)
    with pytest.raises(NotEnoughMemory, match="--batch-invariant needs KV pages"):
        make_engine("qwen3", batch_invariant=True, kv_memory=page_bytes * 40)


def test_back_ends_that_cannot_are_refused() -> None:
    with pytest.raises(EnvironmentUnfit, match="--batch-invariant cannot be had with --attention"):
        make_engine("qwen3", batch_invariant=True, attention="flex")


def test_it_is_said() -> None:
    with make_engine("qwen3", batch_invariant=True) as engine:
        assert any(line.startswith("batch-invariant: ") for line in engine.notices)
    assert setup.TILE["cpu"] == 32
    assert torch.is_grad_enabled()
