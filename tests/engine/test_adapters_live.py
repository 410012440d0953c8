"""What a trainer's PEFT model does beside an engine: served as its own forward, or told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.errors import UsageError
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.digest import digest
from tests.engine.test_adapters import (
    MODES,
    NEW,
    PROMPTS,
    complete_of,
    engine_over,
    fresh,
    perturb,
    with_lora,
)
from tests.support.engines import LIMITS, assert_greedy, complete, ids_of, loaded

IDLE = "the model's PEFT adapter is not in use, its base alone is served"
NOOP = "adapter is a no-op: every delta is zero"
modes = pytest.mark.parametrize("mode", MODES)


def test_a_peft_model_without_a_choice_is_its_base_and_says_so() -> None:
    model = fresh("qwen3")
    base = complete_of(model)
    with Engine(loaded(model), EngineConfig(attention="dense", **LIMITS)) as engine:
        assert not any(IDLE in line for line in engine.notices)
    peft = with_lora(model)
    for module in (peft, peft.get_base_model()):
        with Engine(loaded(module), EngineConfig(attention="dense", **LIMITS)) as engine:
            assert any(IDLE in line for line in engine.notices)
            assert ids_of(complete(engine, PROMPTS, max_new_tokens=NEW)) == base
    with engine_over(peft.get_base_model(), peft) as engine:
        assert not any(IDLE in line for line in engine.notices)


@modes
def test_layers_whose_adapter_is_not_active_are_their_base(mode: str) -> None:
    peft = with_lora(fresh("qwen3"))
    for layer in peft.get_base_model().model.layers[::2]:
        layer.self_attn.o_proj.set_adapter([])
        layer.mlp.up_proj.set_adapter([])
    with engine_over(peft.get_base_model(), peft, mode) as engine:
        assert any("24 of 24 modules matched" in line for line in engine.notices)
        assert_greedy(peft, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))


def test_trained_tokens_are_refused_by_their_name() -> None:
    model = fresh("qwen3")
    base, before = complete_of(model), digest(model)
    peft = with_lora(model, trainable_token_indices=[1, 2])
    with pytest.raises(UsageError, match="trainable_token_indices is not supported") as caught:
        engine_over(model, peft)
    assert "merge it into its base" in str(caught.value.hint)
    assert digest(peft) == before
    with Engine(loaded(model), EngineConfig(attention="dense", **LIMITS)) as engine:
        assert any(IDLE in line for line in engine.notices)
        assert ids_of(complete(engine, PROMPTS, max_new_tokens=NEW)) == base


@modes
@pytest.mark.parametrize("source", ["live", "memory"])
def test_a_base_with_a_merged_adapter_is_served_by_nobody(source: str, mode: str) -> None:
    """Beside its side path, or at a refresh, the delta would count twice."""
    peft = with_lora(fresh("qwen3"))
    base = peft.get_base_model()
    with engine_over(base, peft if source == "live" else "random:4", mode) as engine:
        before = ids_of(complete(engine, PROMPTS, max_new_tokens=4))
        peft.merge_adapter()
        said = r"default is merged into (model\.)+layers\.0\.self_attn\.q_proj"
        calls: tuple[Callable[[], Any], ...] = (
            lambda: complete(engine, PROMPTS, max_new_tokens=4),
            engine.refresh,
        )
        for call in calls:
            with pytest.raises(UsageError, match=said):
                call()
        assert engine.policy_version == 0
        peft.unmerge_adapter()
        assert ids_of(complete(engine, PROMPTS, max_new_tokens=4)) == before


def test_a_refresh_says_what_it_brought_in() -> None:
    peft, told = with_lora(fresh("qwen3")), list[str]()
    given = replace(loaded(peft.get_base_model()), adapter=AdapterChoice(peft, "merged"))
    config = EngineConfig(attention="dense", **LIMITS)
    with Engine(given, config, lambda line, done, total: told.append(line)) as engine:
        first = engine.notices
        engine.refresh()
        assert engine.notices == first
        assert NOOP not in told
        held = {n: p.detach().clone() for n, p in peft.named_parameters() if ".lora_B." in n}
        with torch.no_grad():
            for name in held:
                peft.get_parameter(name).zero_()
        engine.refresh()
        assert engine.notices == (*first, NOOP)
        assert told.count(NOOP) == 1
        perturb(peft)
        engine.refresh()
        assert engine.notices == first
        adapter = engine.machinery.weights.adapter
        assert adapter is not None
        pairs = {name: pair._replace(scale=0.5) for name, pair in adapter.pairs.items()}
        engine.refresh(Adapter("mine", pairs))
        assert any("rank 4, scale 0.5" in line for line in engine.notices)
        assert not any("scale 2" in line for line in engine.notices)
