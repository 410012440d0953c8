"""What no engine can take as an adapter is told in one line, and the old weights go on serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.errors import FlexinferError, NotEnoughMemory, StaleWeights, UsageError
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.choice import AdapterChoice
from tests.engine.test_adapters import MODES, PROMPTS, engine_over, fresh
from tests.support.engines import complete, loaded, tiny
from tests.weights.adapters.cases import adapted, biased_llama, save

HERE = "layers.2.mlp.up_proj"


def refusal(call: Callable[[], object]) -> str:
    """Return message and hint of the error that `call` raises, one line each."""
    with pytest.raises(FlexinferError) as caught:
        call()
    text = f"{caught.value.message} / {caught.value.hint}"
    assert "\n" not in text
    return text


def spoilt(adapter: Adapter, name: str = HERE, **parts: Any) -> Adapter:
    """Return an adapter whose pair `name` has other parts."""
    pair = adapter.pairs.get(name, adapter.pairs[HERE])._replace(**parts)
    return replace(adapter, pairs={**adapter.pairs, name: pair})


BAD: dict[str, tuple[Callable[[Adapter], Any], str]] = {
    "columns": (lambda good: spoilt(good, a=torch.ones(4, 32)), f"lora_A of {HERE} is [4, 32]"),
    "rows": (lambda good: spoilt(good, b=torch.ones(64, 4)), f"lora_B of {HERE} is [64, 4]"),
    "broadcast": (lambda good: spoilt(good, a=torch.ones(4, 1)), f"lora_A of {HERE} is [4, 1]"),
    "ranks": (lambda good: spoilt(good, b=torch.ones(128, 3)), f"lora_B of {HERE} is [128, 3]"),
    "rank 0": (
        lambda good: spoilt(good, a=torch.ones(0, 64), b=torch.ones(128, 0)),
        f"{HERE} has rank 0",
    ),
    "nan": (
        lambda good: spoilt(good, b=torch.full((128, 4), float("nan"))),
        f"{HERE} holds NaN or infinite",
    ),
    "infinite": (
        lambda good: spoilt(good, a=torch.full((4, 64), float("inf"))),
        f"{HERE} holds NaN or infinite",
    ),
    "int8": (
        lambda good: spoilt(good, a=torch.ones(4, 64, dtype=torch.int8)),
        f"lora_A of {HERE} is int8",
    ),
    "scale": (lambda good: spoilt(good, scale=float("nan")), f"the scale of {HERE} is nan"),
    "no scale": (lambda good: spoilt(good, scale=None), f"the scale of {HERE} is None"),
    "no tensor": (lambda good: spoilt(good, a=[[1.0]]), f"{HERE} is no Pair of tensors"),
    "no pair": (
        lambda good: replace(good, pairs={HERE: (torch.ones(4, 64), torch.ones(128, 4))}),
        f"{HERE} is no Pair of tensors",
    ),
    "no mapping": (lambda good: replace(good, pairs=[HERE]), "pairs by name, not a list"),
    "nothing": (lambda good: replace(good, pairs={}), "it holds no LoRA tensors"),
    "unknown": (
        lambda good: spoilt(good, f"model.{HERE}"),
        f"model.{HERE} is no linear map of the model",
    ),
    "head": (lambda good: spoilt(good, "lm_head"), "LoRA on lm_head is not supported"),
    "bias": (
        lambda good: spoilt(good, bias=torch.ones(128)),
        f"it trains {HERE}.bias, which the model does not have",
    ),
    "int": (lambda good: 5, "not an int"),
    "list": (lambda good: [], "not a list"),
    "dict": (lambda good: {}, "not a dict"),
    "bytes": (lambda good: b"", "not a bytes"),
    "empty": (lambda good: "", "is empty"),
    "no folder": (lambda good: Path("/none"), "there is no such folder"),
    "large": (lambda good: "random:99999999", "at most"),
    "a module": (lambda good: nn.Linear(2, 2), "the model has no PEFT layers"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", BAD)
def test_a_bad_adapter_changes_nothing(case: str, mode: str) -> None:
    model, (spoil, said) = tiny("qwen3"), BAD[case]
    with engine_over(model, "random:4", mode) as engine:
        before, sha = complete(engine, PROMPTS, max_new_tokens=4), engine.adapter_sha
        good = engine.machinery.weights.adapter
        assert good is not None
        assert said in refusal(lambda: engine.refresh(spoil(good)))
        assert (engine.policy_version, engine.adapter_sha) == (0, sha)
        assert complete(engine, PROMPTS, max_new_tokens=4) == before
        assert said in refusal(lambda: engine_over(model, spoil(good), mode))
        engine.refresh(good)
        assert complete(engine, PROMPTS, max_new_tokens=4) == before


def test_a_saved_bias_that_the_model_has_no_place_for(tmp_path: Path) -> None:
    """PEFT drops it in silence; what its trainer saw is then not what is served."""
    folder = save(adapted(biased_llama(), target_modules=["q_proj"], bias="lora_only"), tmp_path)
    said = "it trains layers.0.self_attn.q_proj.bias, which the model does not have"
    assert said in refusal(lambda: engine_over(tiny("llama"), folder))
    with engine_over(biased_llama(), folder) as engine:
        assert any("4 with a bias" in line for line in engine.notices)


@pytest.mark.parametrize("source", [None, 3, [], {}, b""])
def test_a_choice_of_no_adapter(source: Any) -> None:
    assert "an adapter is" in refusal(lambda: AdapterChoice(source))


@pytest.mark.parametrize("seed", [-1, 1.5, "0", 2**63])
def test_a_choice_with_no_seed(seed: Any) -> None:
    assert "--seed is" in refusal(lambda: AdapterChoice("random", seed=seed))


@pytest.mark.parametrize("mode", ["junk", "", 3])
def test_a_choice_of_no_mode(mode: Any) -> None:
    said = refusal(lambda: AdapterChoice("random", mode=mode))
    assert f"--lora-mode is {mode!r}; allowed: merged, runtime" in said


def test_a_model_takes_a_choice_and_nothing_else() -> None:
    wrong: Any = "good"
    with pytest.raises(
        UsageError, match="a LoadedModel takes an AdapterChoice, not a str"
    ) as caught:
        Engine(replace(loaded(tiny("qwen3")), adapter=wrong), EngineConfig())
    assert "AdapterChoice('good')" in str(caught.value.hint)


def test_an_adapter_on_the_models_device_is_copied() -> None:
    """A trainer goes on with its tensors: what was brought in, and its sha, are of that moment."""
    with engine_over(fresh("qwen3"), "random:4") as engine:
        given = engine.machinery.weights.adapter
        assert given is not None
        pair = given.pairs[HERE]
        for tensor in (pair.a, pair.b):
            tensor.requires_grad_(True)
        engine.refresh(given)
        sha, found = engine.adapter_sha, complete(engine, PROMPTS, max_new_tokens=4)
        with torch.no_grad():
            pair.b.add_(1)
        assert engine.adapter_sha == sha
        assert complete(engine, PROMPTS, max_new_tokens=4) == found
        held = engine.machinery.weights.adapter
        assert held is not None
        assert not held.pairs[HERE].b.requires_grad
        engine.refresh(given)
        assert engine.adapter_sha != sha


def test_an_adapter_given_as_a_pair_of_any_kind_of_number() -> None:
    whole = Adapter("mine", {HERE: Pair(torch.ones(2, 64), torch.ones(128, 2), 2)})
    with engine_over(fresh("qwen3"), whole) as engine:
        assert engine.adapter_sha is not None
        assert any("1 of 1 modules matched, rank 2, scale 2" in line for line in engine.notices)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.OutOfMemoryError("CUDA error")])
@pytest.mark.parametrize("mode", MODES)
def test_a_refresh_that_breaks_off_serves_nothing_until_the_next(
    mode: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the weights is new by then: no policy that a trainer ever had."""
    with engine_over(fresh("qwen3"), "random:4", mode) as engine:
        before = complete(engine, PROMPTS, max_new_tokens=4)
        held: Any = engine.machinery.weights.weights
        load = held.load

        def breaking(adapter: Adapter) -> None:
            load(spoilt(adapter, b=adapter.pairs[HERE].b + 1))
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(held, "load", breaking)
            with pytest.raises((KeyboardInterrupt, NotEnoughMemory)):
                engine.refresh()
        assert engine.policy_version == 0
        with pytest.raises(StaleWeights, match="a refresh broke off") as caught:
            complete(engine, PROMPTS, max_new_tokens=4)
        assert caught.value.hint == "refresh again"
        engine.refresh()
        assert complete(engine, PROMPTS, max_new_tokens=4) == before
