"""The trainer's module after generate is what it was before, to the last bit, mode and flag."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from tests.support.engines import OVERRIDES, complete, make_engine, request
from tests.support.oracle import hf_logits
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES
from tests.support.untouched import describe

PROMPTS = prompts_of(9, 3, 17)
BACKENDS = ["dense", pytest.param("flex", marks=pytest.mark.slow)]


def gradients(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return the gradients of one training step, and clear them."""
    ids = torch.tensor([PROMPTS[2]], device=model.device)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("mode", ["eval", "train", "checkpointing"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_leaves_the_module_alone(family: str, mode: str, attention: str) -> None:
    model = FAMILIES[family](**OVERRIDES.get(family, {}))
    model.train(mode != "eval")
    model.model.layers[1].eval()
    model.model.embed_tokens.weight.requires_grad_(False)
    if mode == "checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
    steps, logits = gradients(model), hf_logits(model, PROMPTS[0])
    before = describe(model)
    with make_engine(model, attention=attention) as engine:
        complete(engine, PROMPTS, max_new_tokens=6)
        complete(engine, PROMPTS, max_new_tokens=6, temperature=1.0, top_k=9, n=2)
        complete(engine, PROMPTS, max_new_tokens=6, repetition_penalty=1.5)
        assert describe(model) == before
    assert describe(model) == before
    assert torch.equal(hf_logits(model, PROMPTS[0]), logits)
    assert len(steps) > 10
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), steps, strict=True))


def test_an_abandoned_call_leaves_it_alone_too() -> None:
    model = FAMILIES["qwen3"]().train()
    before = describe(model)
    with make_engine(model) as engine:
        next(engine.stream([request(p, max_new_tokens=6) for p in PROMPTS]))
        with pytest.raises(ZeroDivisionError):
            list(engine.stream([request(PROMPTS[0])], lambda *args: 1 // 0))
    assert describe(model) == before


def test_grad_mode_is_the_callers_between_outputs() -> None:
    with make_engine("qwen3") as engine:
        for _ in engine.stream([request(p, max_new_tokens=2 + len(p)) for p in PROMPTS]):
            assert torch.is_grad_enabled()
            assert (torch.ones(2, requires_grad=True) * 2).requires_grad
        with torch.inference_mode():
            complete(engine, PROMPTS, max_new_tokens=3)
        complete(engine, PROMPTS, max_new_tokens=3)


def test_global_random_state_is_neither_read_nor_moved() -> None:
    found = []
    for seed in (1, 2):
        with make_engine("qwen3") as engine, torch.random.fork_rng():
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            found.append(complete(engine, PROMPTS, max_new_tokens=6, temperature=1.0))
            assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trainers_edit_is_seen_by_the_next_call(family: str) -> None:
    model = FAMILIES[family](**OVERRIDES.get(family, {}))
    with make_engine(model) as engine:
        first = complete(engine, PROMPTS, max_new_tokens=6)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)
        second = complete(engine, PROMPTS, max_new_tokens=6)
    with make_engine(model) as fresh:
        assert complete(fresh, PROMPTS, max_new_tokens=6) == second
    assert [c.logprobs for c in first] != [c.logprobs for c in second]
