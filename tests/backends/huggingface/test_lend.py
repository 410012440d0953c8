"""A rollout leaves the trainer's module as it was, also where it fails (CASES A24)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.huggingface.lend import Lender
from flexinfer.errors import EnvironmentUnfit
from tests.support.engines import request
from tests.support.rollouts import PROMPTS, fresh, live, requests, samples, with_lora
from tests.support.untouched import describe

pytestmark = [
    pytest.mark.usefixtures("quick_collection"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
KINDS: list[tuple[str, RolloutOptions | None]] = [
    ("hf", None),
    ("hf", RolloutOptions(attn_impl="sdpa")),
    ("hf-cb", None),
    ("hf-cb", RolloutOptions(attn_impl="sdpa", persistent_cb=True)),
]


def trained(family: str = "qwen3") -> tuple[Any, Any]:
    """Return (module, PeftModel) as a trainer has them: training, checkpointing, no cache."""
    module = fresh(family)
    model = with_lora(module, dropout=0.5)
    model.gradient_checkpointing_enable()
    module.config.use_cache = False
    module.model.norm.eval()  # of mixed modes, each is kept
    return module, model


def state(module: Any) -> dict[str, Any]:
    """Describe everything, the objects of configs and the states of all generators included."""
    held = describe(module)
    held["objects"] = (id(module.config), id(module.generation_config))
    held["config object"] = dict(vars(module.config))
    held["python"] = random.getstate()
    held["numpy"] = [str(part) for part in np.random.get_state()]
    return held


def logits(model: Any) -> torch.Tensor:
    """Return a training forward's logits; dropout draws from a seed of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found: torch.Tensor = model(input_ids=torch.tensor([PROMPTS[2]])).logits
    return found.detach().clone()


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_all_is_as_it_was(name: str, options: RolloutOptions | None) -> None:
    module, model = trained()
    before, own = state(module), logits(model)
    backend = live(name, module, model, options=options)
    for params in ({}, {"temperature": 1.0, "top_p": 0.8, "n": 2}):
        samples(backend, requests(5, **params))
        after = state(module)
        assert [key for key in before if before[key] != after[key]] == []
    assert torch.equal(logits(model), own)
    backend.close()
    assert [key for key, value in state(module).items() if before[key] != value] == []


@pytest.mark.parametrize(("name", "options"), KINDS[:2])
def test_all_is_as_it_was_where_generate_raises(
    name: str, options: RolloutOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, model = trained()
    before, own = state(module), logits(model)
    backend = live(name, module, model, options=options)

    def broken(*args: Any, **kwargs: Any) -> Any:
        random.random(), np.random.rand(), torch.rand(1)
        module.config.use_cache = True
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(module.model.layers[1]), "forward", broken)
        with pytest.raises(KeyboardInterrupt):
            backend.generate(requests(5))
    after = state(module)
    assert [key for key in before if before[key] != after[key]] == []
    assert torch.equal(logits(model), own)
    samples(backend, requests(3))


def test_a_trainers_step_after_a_rollout_is_the_one_without_it() -> None:
    def grads(rollout: bool) -> dict[str, torch.Tensor]:
        module, model = trained("gemma4")
        if rollout:
            samples(live("hf", module, model), requests(4, temperature=1.0))
        torch.manual_seed(3)
        model(input_ids=torch.tensor([PROMPTS[2]])).logits.square().mean().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain, after = grads(False), grads(True)
    assert plain.keys() == after.keys()
    assert len(plain) > 10
    assert all(torch.equal(plain[name], after[name]) for name in plain)


def test_dropout_is_off_in_a_rollout() -> None:
    module, model = trained()
    backend = live("hf", module, model)
    first, second = (samples(backend, requests(6)) for _ in range(2))
    assert first == second
    kept = samples(live("hf", module, model.eval()), requests(6))
    assert first == kept


def test_what_a_loan_left_comes_back_with_the_next_and_is_not_seen_between() -> None:
    module = fresh("qwen3")
    lender = Lender(module, None)
    with lender.loan() as lent:
        lent._compiled_call = "compiled"
    assert "_compiled_call" not in vars(module)
    with lender.loan() as lent:
        assert vars(lent)["_compiled_call"] == "compiled"
    lender.forget()
    with lender.loan() as lent:
        assert "_compiled_call" not in vars(lent)


@pytest.mark.parametrize("name", ["hf", "hf-cb"])
def test_an_attention_that_is_not_there_is_exit_3_and_the_module_as_before(name: str) -> None:
    module = fresh("qwen3")
    before = state(module)
    backend = live(name, module, options=RolloutOptions(attn_impl="flash_attention_4"))
    with pytest.raises(EnvironmentUnfit, match="--attn-impl flash_attention_4"):
        backend.generate([request((5, 6), max_new_tokens=2)])
    assert state(module) == before


def test_the_attention_that_was_asked_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = fresh("qwen3"), set()
    forward = type(module.model.layers[0].self_attn).forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.add(self.config._attn_implementation)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(module.model.layers[0].self_attn), "forward", watched)
    samples(live("hf", module, options=RolloutOptions(attn_impl="sdpa")), requests(3))
    assert seen == {"sdpa"}
    assert module.config._attn_implementation == "eager"
