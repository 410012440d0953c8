"""Sliding windows and KV sharing in the engine: far decodes, exact reach, nothing overwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flexinfer.attention.paged import TileLayer
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.engine import Engine
from flexinfer.models.decoder import Walker
from tests.support.engines import (
    OVERRIDES,
    assert_greedy,
    complete,
    loaded,
    machinery,
    make_engine,
    oracle_rows,
    tiny,
)
from tests.support.oracle import hf_logits
from tests.support.prompts import TOLERANCE, prompts_of
from tests.support.tiny import tiny_gemma4, tiny_qwen3

Open = Callable[..., Engine]
WINDOW = 8
backends = pytest.mark.parametrize(
    "attention", ["dense", pytest.param("flex", marks=pytest.mark.slow)]
)


@backends
@pytest.mark.parametrize("lengths", [(30,), (30, 5, 17)])
def test_every_prompt_position_is_the_oracles(
    lengths: tuple[int, ...], attention: str, open_engine: Open
) -> None:
    """Each position in turn is the last one of a prompt, whose row the engine samples from."""
    engine = open_engine("gemma4", attention=attention, max_batch_size=8)
    for prompt in prompts_of(*lengths):
        prefixes = [prompt[: end + 1] for end in range(len(prompt))]
        assert_greedy("gemma4", prefixes, complete(engine, prefixes, max_new_tokens=1))


@backends
def test_a_window_crossed_while_decoding(attention: str, open_engine: Open) -> None:
    prompts = prompts_of(3, 7, 8, 9, 15, 16, 17)
    found = complete(open_engine("gemma4", attention=attention), prompts, max_new_tokens=60)
    assert [len(completion.token_ids) for completion in found] == [60] * 7
    assert_greedy("gemma4", prompts, found)


def test_a_qwen3_with_windows(open_engine: Open) -> None:
    model = tiny_qwen3(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2)
    prompts = prompts_of(3, 9, 30)
    found = complete(open_engine(model), prompts, max_new_tokens=25)
    assert_greedy(model, prompts, found)
    with pytest.raises(AssertionError, match="prompt of"):
        assert_greedy("qwen3", prompts, found)


def only_active(layer: int) -> PreTrainedModel:
    """Build Gemma with the attention output of every layer but one zeroed."""
    model = tiny_gemma4(**OVERRIDES["gemma4"])
    with torch.no_grad():
        for index, block in enumerate(model.model.layers):
            if index != layer:
                block.self_attn.o_proj.weight.zero_()
    return model


@backends
@pytest.mark.parametrize("layer", [1, 3, 6])
def test_one_sliding_layer_sees_exactly_its_window(
    layer: int, attention: str, open_engine: Open
) -> None:
    """Log-probabilities at 29 do not change by a bit with token 21, and do with token 22."""
    engine = open_engine(only_active(layer), attention=attention)
    (prompt,) = prompts_of(30)

    def changed(position: int) -> list[int]:
        return [*prompt[:position], prompt[position] - 1, *prompt[position + 1 :]]

    same, first, outside, inside = (
        complete(engine, [variant], max_new_tokens=1)[0].logprobs
        for variant in (prompt, changed(0), changed(29 - WINDOW), changed(30 - WINDOW))
    )
    assert first == outside == same
    assert inside != same


def test_one_full_layer_sees_everything(open_engine: Open) -> None:
    engine = open_engine(only_active(5))
    (prompt,) = prompts_of(30)
    same, other = (
        complete(engine, [[first, *prompt[1:]]], max_new_tokens=1)[0].logprobs
        for first in (prompt[0], prompt[0] + 1)
    )
    assert other != same


@dataclass
class Watch:
    """Wraps an Attend; a borrowing layer may store nothing and must leave all pools as they are."""

    inner: Any
    pools: list[Tensor]
    turns: list[int]

    def __call__(self, spec: LayerSpec) -> WatchedLayer:
        return WatchedLayer(self.inner(spec), spec, self)

    def kept(self) -> Watch:
        return Watch(self.inner.kept(), self.pools, self.turns)


@dataclass
class WatchedLayer:
    """Wraps the hole of one layer."""

    inner: Any
    spec: LayerSpec
    watch: Watch

    def store(self, k: Tensor, v: Tensor) -> None:
        assert self.spec.owns_kv
        self.inner.store(k, v)

    def __call__(self, q: Tensor) -> Tensor:
        before = [pool.clone() for pool in self.watch.pools]
        out: Tensor = self.inner(q)
        assert all(torch.equal(a, b) for a, b in zip(before, self.watch.pools, strict=True))
        if not self.spec.owns_kv:
            self.watch.turns.append(self.spec.index)
        return out


def test_borrowing_layers_leave_the_caches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    prompts = prompts_of(12, 5, 9, 17)
    with make_engine("gemma4") as engine:
        programs = machinery(engine).programs
        specs = programs.decode_decoder.specs
        pools = [pool for spec in specs if spec.owns_kv for pool in programs.cache.layer(spec)]
        assert len(programs.cache) == len(pools) / 2 == 4
        real = Walker.__call__

        def call(self: Walker, tokens: Tensor, at: Tensor, attend: object, keep: object) -> Tensor:
            return real(self, tokens, at, Watch(attend, pools, turns), keep)

        monkeypatch.setattr(Walker, "__call__", call)
        found = complete(engine, prompts, max_new_tokens=12)
    assert turns == [4, 5, 6, 7] * 12
    monkeypatch.undo()
    assert_greedy("gemma4", prompts, found)


@pytest.mark.parametrize("layers", [2, 4])
def test_any_number_of_borrowing_layers(layers: int, open_engine: Open) -> None:
    model = tiny_gemma4(**OVERRIDES["gemma4"], num_kv_shared_layers=layers)
    prompts = prompts_of(3, 12, 30)
    engine = open_engine(model)
    assert len(machinery(engine).programs.cache) == 8 - layers
    found = complete(engine, prompts, max_new_tokens=20)
    for prompt, completion in zip(prompts, found, strict=True):
        rows = oracle_rows(model, prompt, completion.token_ids)
        assert rows.argmax(-1).tolist() == list(completion.token_ids)


def test_borrowing_layers_prefill_kept_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = TileLayer.__call__

    def call(self: TileLayer, *args: Tensor) -> Tensor:
        seen.append(args[0].shape[0])
        return real(self, *args)

    monkeypatch.setattr(TileLayer, "__call__", call)
    prompts = prompts_of(12, 5)
    with Engine(loaded(tiny("gemma4"))) as engine:
        (found, _) = complete(engine, prompts, max_new_tokens=1)
    assert seen == [17] * 4
    best = hf_logits(tiny("gemma4"), prompts[0])[-1].log_softmax(-1).max()
    assert abs(float(best) - found.logprobs[0]) < TOLERANCE
