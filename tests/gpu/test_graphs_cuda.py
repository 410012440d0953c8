"""Captured decode steps: same ids as eager ones, at every bucket, and padding touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import RequestOutput
from flexinfer.engine.steps.graphs import DecodeRunner, bucket_for
from flexinfer.kernels.sampler import SamplerKind
from tests.support.cuda import LIMITS, tiny_on_cuda, wide_on_cuda
from tests.support.engines import assert_greedy, complete, ids_of, machinery, request
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES
from tests.support.traces import watch

pytestmark = pytest.mark.gpu
Open = Callable[..., Engine]
CANARY = 1e6
PAGE = LIMITS["page_size"]
RANDOM: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 4}
CUT = RANDOM | {"top_k": 40, "top_p": 0.95}
PENALISED = CUT | {"repetition_penalty": 1.5}


def open_pair(open_engine: Open, model: Any, **config: Any) -> tuple[Engine, Engine]:
    """Return an engine with graphs and one without."""
    settings = {"attention": "dense"} | dict(LIMITS) | config
    return open_engine(model, **settings), open_engine(model, cuda_graphs=False, **settings)


class WholeTable(DecodeRunner):
    """Runs eager steps over whole rows of the page table, as graphs do (else sums differ)."""

    def run(self, slots: Sequence[int], kind: SamplerKind, columns: int) -> torch.Tensor:
        return super().run(slots, kind, self._programs.tables.table.shape[1])


def all_ids(outputs: list[RequestOutput]) -> list[list[tuple[int, ...]]]:
    return [ids_of(output.outputs) for output in outputs]


buckets = pytest.mark.parametrize("largest", [1, 3, 5, 7, 8, 63])
families = pytest.mark.parametrize("family", FAMILIES)


def prompts_for(live: int) -> list[list[int]]:
    return prompts_of(*(3 + i % 20 for i in range(live)))


@buckets
@families
def test_every_bucket_is_eager_and_the_oracle(family: str, largest: int, open_engine: Open) -> None:
    """Rows end at different times, so slots have holes."""
    model = tiny_on_cuda(family)
    graphs, eager = open_pair(open_engine, model, max_batch_size=largest)
    for live in sorted({1, largest // 2 + 1, largest}):
        prompts = prompts_for(live)
        requests = [request(p, max_new_tokens=3 + 2 * (i % 4)) for i, p in enumerate(prompts)]
        outputs = graphs.generate(requests)
        assert all_ids(outputs) == all_ids(eager.generate(requests))
        assert_greedy(model, prompts[:8], [output.outputs[0] for output in outputs[:8]])
        assert bucket_for(live, largest) in machinery(graphs).runner.buckets
    assert graphs.stats.eager_steps == eager.stats.graph_replays == 0
    assert graphs.stats.graph_replays == graphs.stats.decode_steps == eager.stats.eager_steps


@buckets
@families
def test_padding_rows_write_no_real_page(family: str, largest: int, open_engine: Open) -> None:
    """Pages are full of canaries before; capturing, too, runs on rows that are padding.

    From many rows to few, free slots still name pages that are others' by now.
    """
    engine = open_engine(tiny_on_cuda(family), **dict(LIMITS) | {"max_batch_size": largest})
    programs = machinery(engine).programs
    specs = programs.decode_decoder.specs
    pools = [pool for s in specs if s.owns_kv for pool in programs.cache.layer(s)]
    up = sorted({1, largest // 2 + 1, largest})
    for live in [*up, *up[-2::-1]]:
        for pool in pools:
            pool[:, :, PAGE:] = CANARY
        prompts = prompts_for(live)
        complete(engine, prompts, max_new_tokens=5)
        # The KV of a last token is never needed, so never written.
        assert dirty_positions(pools) == sum(len(prompt) + 4 for prompt in prompts)
    assert not programs.tables.table[programs.tables.pad_slot].any()
    assert programs.state.tensors.positions[programs.tables.pad_slot] == 0


def dirty_positions(pools: list[torch.Tensor]) -> int:
    """Count the positions outside scratch that no longer hold the canary in some pool."""
    dirty = torch.zeros(pools[0].shape[2], dtype=torch.bool, device="cuda")
    for pool in pools:
        dirty |= (pool != CANARY).any(-1).any(1)[0]
    return int(dirty[PAGE:].sum())


def test_the_bucket_holds_the_live_rows(open_engine: Open) -> None:
    engine = open_engine(tiny_on_cuda("qwen3"), **dict(LIMITS) | {"max_batch_size": 7})
    runner = machinery(engine).runner
    for rows in range(1, 8):
        assert rows <= runner.bucket(rows, SamplerKind.GREEDY) <= 7
    complete(engine, prompts_of(*range(3, 10)), max_new_tokens=3)
    assert runner.buckets == (7,)
    assert runner.bucket(2, SamplerKind.GREEDY) == 7
    assert not runner.needs(7, SamplerKind.GREEDY)
    assert runner.needs(7, SamplerKind.RANDOM)
    assert engine.stats.capture_s > 0


@pytest.mark.parametrize("attention", ["dense", "flex", "triton"])
@families
def test_bf16_graphs_are_eager_steps_bit_for_bit(
    family: str, attention: str, open_engine: Open
) -> None:
    """The batch is a bucket's size and all rows live equally long, so shapes are the same."""
    model = wide_on_cuda(family)
    graphs, eager = open_pair(open_engine, model, attention=attention, max_batch_size=4)
    held = machinery(eager)
    runner = WholeTable(held.programs, held.max_batch_size, False, eager.stats)
    eager._machinery = replace(held, runner=runner)
    prompts = prompts_of(5, 17, 33, 20)
    for given in ({"max_new_tokens": 40}, RANDOM, CUT, PENALISED):
        a, b = (complete(engine, prompts, **given) for engine in (graphs, eager))
        assert ids_of(a) == ids_of(b)
        assert [c.logprobs for c in a] == [c.logprobs for c in b]
        assert len(set(ids_of(a))) == 4


@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_samplers_in_any_order_of_capture(attention: str, open_engine: Open) -> None:
    """A graph captured for cuts must obey a penalty that a later call asks for."""
    graphs, eager = open_pair(open_engine, tiny_on_cuda("qwen3"), attention=attention)
    prompts = prompts_of(9, 5, 20)
    seen = []
    for given in (PENALISED, CUT, PENALISED, {"max_new_tokens": 12}, RANDOM, CUT):
        seen.append(ids_of(complete(graphs, prompts, **given)))
        assert seen[-1] == ids_of(complete(eager, prompts, **given))
    assert seen[1] == seen[-1]
    assert seen[0] == seen[2]
    assert len({tuple(ids) for ids in seen}) == 4


@pytest.mark.parametrize("attention", ["flex", "triton"])
def test_capturing_a_prefill_leaves_no_trace(
    attention: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither pages nor slots nor seen tokens, so that the call that captures is like any other."""
    model = wide_on_cuda("qwen3") if attention == "triton" else tiny_on_cuda("qwen3")
    engine = open_engine(model, attention=attention, **LIMITS)
    changed, prompts = watch(engine, monkeypatch), prompts_of(9, 5, 20)
    for given in (PENALISED, CUT, {"max_new_tokens": 12}, RANDOM):
        first = ids_of(complete(engine, prompts, **given))
        assert first == ids_of(complete(engine, prompts, **given))
    assert changed == [0] * len(SamplerKind)


def test_the_penalty_is_alive_inside_a_graph(open_engine: Open) -> None:
    engine = open_engine(tiny_on_cuda("qwen3"), **LIMITS)
    prompts = prompts_of(9, 5, 20)
    found = complete(engine, prompts, max_new_tokens=60, repetition_penalty=1e6)
    for prompt, completion in zip(prompts, found, strict=True):
        assert len(set(completion.token_ids)) == 60
        assert not set(completion.token_ids) & set(prompt)


def test_results_of_one_call_survive_the_next(open_engine: Open) -> None:
    engine = open_engine(tiny_on_cuda("gemma4"), **dict(LIMITS) | {"attention": "flex"})
    model, prompts = tiny_on_cuda("gemma4"), prompts_of(9, 5, 20)
    first = complete(engine, prompts, max_new_tokens=20, logprobs=True)
    kept = [(c.token_ids, c.logprobs, c.policy_logprobs, c.text) for c in first]
    second = complete(engine, prompts_of(7, 30, 4, seed=2), max_new_tokens=30, logprobs=True)
    assert [(c.token_ids, c.logprobs, c.policy_logprobs, c.text) for c in first] == kept
    assert_greedy(model, prompts, first)
    assert_greedy(model, prompts_of(7, 30, 4, seed=2), second)
