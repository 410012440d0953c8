"""Adapters over a borrowed module: PEFT's own forward, refreshed without drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.errors import StaleWeights, UsageError
from flexinfer.weights.adapters.choice import AdapterChoice, AdapterSource
from flexinfer.weights.digest import digest
from tests.support.engines import LIMITS, assert_greedy, complete, ids_of, loaded, request
from tests.support.engines import OVERRIDES as KINDS
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

PROMPTS = prompts_of(9, 3, 17, 8)
MODES = ("merged", "runtime")
NEW = 12


def fresh(family: str) -> Any:
    """Return a tiny model of a test's own, which PEFT may change."""
    return FAMILIES[family](**KINDS.get(family, {}))


def with_lora(model: Any, seed: int = 1, **config: Any) -> PeftModel:
    """Put a random non-zero adapter on all linear layers of `model`."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | config
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        peft = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        perturb(peft)
    return peft


def perturb(peft: nn.Module, scale: float = 0.1) -> None:
    """Move every B (zero at first) by noise."""
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if ".lora_B." in name:
                parameter.add_(torch.randn_like(parameter), alpha=scale)


def engine_over(model: Any, source: AdapterSource, mode: Any = "merged", **config: Any) -> Engine:
    """Build an engine over a module and an adapter."""
    settings = {"attention": "dense"} | dict(LIMITS) | config
    with_adapter = replace(loaded(model), adapter=AdapterChoice(source, mode))
    return Engine(with_adapter, EngineConfig(**settings))


def copies(engine: Engine) -> dict[str, torch.Tensor]:
    """Return the inference weights of an engine."""
    held = engine.machinery.weights.weights
    assert held is not None
    tensors = [t for leaf in held._copies.values() for t in leaf if t is not None]
    return {str(number): tensor.clone() for number, tensor in enumerate(tensors)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_pefts_own_forward(family: str, mode: str) -> None:
    model = fresh(family)
    base = complete_of(model)
    peft = with_lora(model)
    with engine_over(model, peft, mode) as engine:
        found = complete(engine, PROMPTS, max_new_tokens=NEW)
        assert ids_of(found) != base
        assert_greedy(peft, PROMPTS, found)


def complete_of(model: Any) -> list[tuple[int, ...]]:
    """Return the ids of the base alone."""
    with Engine(loaded(model), EngineConfig(attention="dense", **LIMITS)) as engine:
        return ids_of(complete(engine, PROMPTS, max_new_tokens=NEW))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": ["k_proj", "up_proj", "o_proj"], "use_rslora": True},
        {"target_modules": ["q_proj", "k_proj"], "rank_pattern": {"k_proj": 7}, "bias": "none"},
        {"target_modules": ["down_proj"], "layers_to_transform": [1, 2]},
    ],
)
@pytest.mark.parametrize("family", ["qwen3", "gemma4"])
def test_some_targets_alone(family: str, config: dict[str, Any], mode: str) -> None:
    peft = with_lora(fresh(family), **config)
    with engine_over(peft.get_base_model(), peft, mode) as engine:
        assert_greedy(peft, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))


@pytest.mark.parametrize("mode", MODES)
def test_a_refresh_follows_the_trainer_and_back(mode: str) -> None:
    peft = with_lora(fresh("qwen3"))
    with engine_over(peft.get_base_model(), peft, mode) as engine:
        ask: Callable[[], Any] = partial(complete, engine, PROMPTS, max_new_tokens=NEW)
        before, sha, base = ask(), engine.adapter_sha, digest(peft)
        held = {n: p.detach().clone() for n, p in peft.named_parameters() if ".lora_" in n}
        for version in range(1, 4):
            perturb(peft, 0.3)
            assert ask() == before if version == 1 else True
            engine.refresh()
            assert engine.policy_version == version
            assert_greedy(peft, PROMPTS, ask())
        assert engine.adapter_sha != sha
        with torch.no_grad():
            for name, parameter in peft.named_parameters():
                if name in held:
                    parameter.copy_(held[name])
        engine.refresh()
        assert ask() == before
        assert engine.adapter_sha == sha
        assert digest(peft) == base


def test_a_refresh_never_adds_up() -> None:
    peft = with_lora(fresh("llama")).to(torch.bfloat16)
    with engine_over(peft.get_base_model(), peft) as engine:
        first = copies(engine)
        for _ in range(3):
            engine.refresh()
            assert all(torch.equal(first[key], now) for key, now in copies(engine).items())


def test_a_new_engine_gives_what_a_refreshed_one_does() -> None:
    peft = with_lora(fresh("gemma4"))
    with engine_over(peft.get_base_model(), peft) as engine:
        complete(engine, PROMPTS, max_new_tokens=NEW)
        perturb(peft, 0.5)
        engine.refresh()
        found = [complete(engine, PROMPTS, max_new_tokens=NEW, n=n) for n in (1, 3)]
    with engine_over(peft.get_base_model(), peft) as engine:
        assert found == [complete(engine, PROMPTS, max_new_tokens=NEW, n=n) for n in (1, 3)]


def test_only_targets_are_copied_and_the_base_stays_shared() -> None:
    model = fresh("gemma4")
    peft = with_lora(model, target_modules=["o_proj"])
    with engine_over(model, peft) as engine:
        weights = engine.machinery.weights.weights
        assert weights is not None
        outputs = [layer.self_attn.o_proj.base_layer.weight for layer in model.model.layers]
        assert weights.n_bytes == sum(weight.nbytes for weight in outputs)


def test_moved_weights_are_stale() -> None:
    model = fresh("qwen3")
    peft = with_lora(model)
    with engine_over(model, peft) as engine:
        before = complete(engine, PROMPTS, max_new_tokens=4)
        linear = model.model.layers[2].mlp.down_proj.base_layer
        old = linear.weight
        linear.weight = nn.Parameter(old.detach().clone())
        moved = r"layers\.2\.mlp\.down_proj\.weight no longer lies"
        for call in (engine.refresh, lambda: complete(engine, PROMPTS, max_new_tokens=4)):
            with pytest.raises(StaleWeights, match=moved):
                call()
        assert engine.policy_version == 0
        linear.weight = old
        assert complete(engine, PROMPTS, max_new_tokens=4) == before


def test_full_training_is_seen_at_once_and_refreshed_in_name() -> None:
    model = fresh("qwen3")
    with Engine(loaded(model), EngineConfig(attention="dense", **LIMITS)) as engine:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.refresh()
        assert engine.policy_version == 1
        assert engine.adapter_sha is None
        assert_greedy(model, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
        with pytest.raises(UsageError, match="without an adapter"):
            engine.refresh("random:4")


def test_an_adapter_of_other_targets_is_refused_and_the_old_one_stays() -> None:
    model = fresh("qwen3")
    with engine_over(model, "random:4") as engine:
        before = complete(engine, PROMPTS, max_new_tokens=4)
        assert complete(engine, PROMPTS, max_new_tokens=4) == before
    peft = with_lora(model, target_modules=["q_proj"])
    wide = with_lora(fresh("qwen3"), target_modules=["o_proj"])
    with engine_over(model, peft) as engine:
        before = complete(engine, PROMPTS, max_new_tokens=4)
        with pytest.raises(UsageError, match="o_proj, which was no target"):
            engine.refresh(wide)
        assert complete(engine, PROMPTS, max_new_tokens=4) == before


def test_a_larger_rank_has_no_side_path() -> None:
    small, large = (with_lora(fresh("qwen3"), r=rank) for rank in (4, 5))
    with engine_over(large.get_base_model(), large, "runtime") as engine:
        engine.refresh(small)
        assert_greedy(small, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
    with (
        engine_over(small.get_base_model(), small, "runtime") as engine,
        pytest.raises(UsageError, match="rank 5; the engine was built for 4"),
    ):
        engine.refresh(large)


def test_a_refresh_waits_for_no_open_stream() -> None:
    peft = with_lora(fresh("qwen3"))
    with engine_over(peft.get_base_model(), peft) as engine:
        stream = engine.stream([request(p, max_new_tokens=3 + len(p)) for p in PROMPTS])
        next(stream)
        with pytest.raises(UsageError, match="a stream of this one is open"):
            engine.refresh()
        stream.close()
        engine.refresh()
