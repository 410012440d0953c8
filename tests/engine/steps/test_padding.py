"""Buckets hold the live rows; rows that fill them up touch no real page and no other slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from flexinfer.core.step import Chunk
from flexinfer.engine import engine as home
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps import prefill
from flexinfer.engine.steps.batch import HostBatch
from flexinfer.engine.steps.graphs import DecodeRunner, bucket_for
from flexinfer.engine.steps.loop import Loop
from flexinfer.engine.steps.prefill import PrefillRunner
from flexinfer.kernels.sampler import SamplerKind
from tests.support.engines import (
    PAGE,
    assert_greedy,
    complete,
    ids_of,
    machinery,
    make_engine,
    request,
)
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
CANARY = 1e6


@pytest.mark.parametrize("largest", [1, 2, 3, 5, 7, 8, 63, 64, 100])
def test_buckets(largest: int) -> None:
    buckets = [bucket_for(rows, largest) for rows in range(1, largest + 1)]
    assert all(rows <= bucket <= largest for rows, bucket in enumerate(buckets, 1))
    assert buckets == sorted(buckets)
    assert len(set(buckets)) <= largest.bit_length() + 1
    assert all(bucket < 2 * rows for rows, bucket in enumerate(buckets, 1))
    assert all(b == largest or b & (b - 1) == 0 for b in buckets)


@pytest.mark.parametrize("rows", [0, 9])
def test_no_bucket_for_what_cannot_be(rows: int) -> None:
    with pytest.raises(AssertionError):
        bucket_for(rows, 8)


class PaddedRunner(DecodeRunner):
    """Computes whole buckets as a captured graph would, one call at a time."""

    def run(self, slots: Sequence[int], kind: SamplerKind, columns: int) -> Tensor:
        bucket = bucket_for(len(slots), self._max)
        whole = self._programs.tables.table.shape[1]
        return self._programs.decode(self._upload(slots, bucket), kind, whole)


class PaddedPrefill(PrefillRunner):
    """Computes batches padded as for a captured graph, one call at a time."""

    def run(self, chunks: Sequence[Chunk], kept_rows: int, kind: SamplerKind) -> Tensor:
        self._graphs = True
        return super().run(chunks, 8, kind)

    def _replay(self, host: HostBatch, kind: SamplerKind) -> Tensor:
        assert host.rows.shape[1] % prefill.GRAPH_STEP == 0
        return self._programs.prefill(host.on(self._programs.tables.table.device), kind)


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch, open_engine: Open) -> Open:
    """Return a function that opens engines whose decode and prefill rows are padded to buckets."""
    monkeypatch.setattr(home, "DecodeRunner", PaddedRunner)
    monkeypatch.setattr(home, "PrefillRunner", PaddedPrefill)
    monkeypatch.setattr(prefill, "GRAPH_STEP", 24)
    return open_engine


def plant(engine: Engine) -> list[Tensor]:
    """Fill every page but scratch with the canary; return the pools."""
    programs = machinery(engine).programs
    pools = [
        pool
        for spec in programs.decode_decoder.specs
        if spec.owns_kv
        for pool in programs.cache.layer(spec)
    ]
    for pool in pools:
        pool[:, :, PAGE:] = CANARY
    return pools


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("largest", [1, 3, 5, 7, 8])
def test_padding_rows_write_no_real_page(family: str, largest: int, padded: Open) -> None:
    engine = padded(family, max_batch_size=largest)
    programs = machinery(engine).programs
    written: set[int] = set()
    up_and_down = [*range(1, largest + 1), *range(largest - 1, 0, -1)]
    for live in up_and_down:
        pools = plant(engine)
        prompts = prompts_of(*range(3, 3 + live))
        outputs = engine.generate([request(p, max_new_tokens=4) for p in prompts])
        assert_greedy(family, prompts, [output.outputs[0] for output in outputs])
        dirty = set()
        for pool in pools:
            paged = pool.view(pool.shape[1], -1, PAGE, pool.shape[3])
            positions = (paged != CANARY).any(-1).any(0)
            dirty |= {tuple(at) for at in positions.nonzero().tolist() if at[0] != 0}
        # The KV of the last token is never needed, so never written.
        assert len(dirty) == sum(len(prompt) + 3 for prompt in prompts)
        written |= {page for page, _ in dirty}
        assert not programs.tables.table[programs.tables.pad_slot].any()
        assert programs.state.tensors.positions[programs.tables.pad_slot] == 0
    assert 0 not in written


def test_the_canary_sees_a_padding_row_on_a_real_page(padded: Open) -> None:
    engine = padded("qwen3", max_batch_size=4)
    tables = machinery(engine).programs.tables
    pools = plant(engine)
    tables.table[tables.pad_slot] = 30
    complete(engine, prompts_of(4, 5, 6), max_new_tokens=4)
    assert any((pool[:, :, 30 * PAGE : 31 * PAGE] != CANARY).any() for pool in pools)


@pytest.mark.parametrize("given", [{}, {"temperature": 1.0, "seed": 4, "top_k": 30}])
def test_padded_engines_sample_the_same(given: dict[str, float], padded: Open) -> None:
    prompts = prompts_of(9, 3, 14, 6, 20)
    found = complete(padded("gemma4", max_batch_size=7), prompts, max_new_tokens=12, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "DecodeRunner", DecodeRunner)
        patch.setattr(home, "PrefillRunner", PrefillRunner)
        plain = make_engine("gemma4", max_batch_size=7)
    assert type(machinery(plain).runner) is DecodeRunner
    assert ids_of(complete(plain, prompts, max_new_tokens=12, **given)) == ids_of(found)


@pytest.mark.parametrize("length", [1, 8, 9, 23])
def test_slots_of_others_are_left_alone(length: int, padded: Open) -> None:
    """A step changes tokens, positions and table rows of its own slots and the pad slot only."""
    engine = padded("qwen3", max_batch_size=5)
    programs = machinery(engine).programs
    tensors = programs.state.tensors
    tensors.tokens[2:5] = 499
    tensors.positions[2:5] = 77
    complete(engine, prompts_of(length, length + 1), max_new_tokens=5)
    assert tensors.tokens[2:5].tolist() == [499] * 3
    assert tensors.positions[2:5].tolist() == [77] * 3
    assert not programs.tables.table[2:].any()
    assert tensors.positions[:2].tolist() == [length + 4, length + 5]


def test_runs_without_graphs_are_counted_as_eager(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    runner = machinery(engine).runner
    assert not runner.needs(3, SamplerKind.GREEDY)
    assert runner.bucket(3, SamplerKind.GREEDY) == 3
    complete(engine, prompts_of(4, 5, 6), max_new_tokens=4)
    assert engine.stats.eager_steps == 3
    assert runner.buckets == ()


def test_a_penalty_after_a_call_without_one_finds_its_tensor(open_engine: Open) -> None:
    """A graph captured for cuts alone must read the tensor that a later penalty writes."""
    engine, prompts = open_engine("qwen3"), prompts_of(9, 5)
    state = machinery(engine).programs.state
    complete(engine, prompts, max_new_tokens=4)
    assert state.seen is None
    seen_at: list[int | None] = []
    real = Loop._prepare

    def prepare(self: Loop) -> None:
        real(self)
        seen_at.append(None if state.seen is None else state.seen.data_ptr())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_prepare", prepare)
        complete(engine, prompts, max_new_tokens=4, temperature=1.0, top_k=5)
        complete(engine, prompts, max_new_tokens=4, repetition_penalty=1.3)
    assert seen_at[0] == seen_at[1] is not None
    assert isinstance(state.seen, torch.Tensor)
    assert state.seen.shape == (9, 512)
