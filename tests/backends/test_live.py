"""Back ends over a trainer's module: what it has learned is rolled out, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.live import open_live
from flexinfer.config import EngineConfig, LoraMode
from flexinfer.errors import UsageError
from tests.backends.huggingface.test_hf import assert_near
from tests.support.engines import loaded
from tests.support.rollouts import (
    DENSE,
    PROMPTS,
    fresh,
    live,
    own_logits,
    requests,
    samples,
    shake,
    with_lora,
)
from tests.support.tiny import FAMILIES

CONFIG = EngineConfig(max_batch_size=4, max_seq_length=96)


def assert_on_policy(backend: Any, model: Any) -> list[Any]:
    """Fail unless what is sampled has the model's own log-probabilities; return the ids."""
    found = samples(backend, requests(6, temperature=1.0, seed=2))
    for prompt, (completion,) in zip(PROMPTS, found, strict=True):
        own = own_logits(model, prompt, completion.token_ids).log_softmax(-1)
        ids = torch.tensor(completion.token_ids)[:, None]
        assert_near(completion.policy_logprobs, own.gather(1, ids)[:, 0])
    return [completion.token_ids for (completion,) in found]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["flex", "hf"])
def test_an_adapter_is_followed_step_by_step(name: str, family: str) -> None:
    module = fresh(family)
    model = with_lora(module)
    backend = live(name, module, model)
    seen = []
    for step in range(3):
        seen.append(assert_on_policy(backend, model))
        shake(model, seed=step + 10)
        backend.refresh()
    assert seen[0] != seen[1] != seen[2]
    assert len(backend.stats.refresh_s) == 3
    assert backend.policy_version == 3


@pytest.mark.parametrize("name", ["flex", "hf"])
def test_so_are_whole_weights(name: str) -> None:
    module = fresh("qwen3")
    backend = live(name, module)
    first = assert_on_policy(backend, module)
    with torch.no_grad():
        module.model.layers[1].mlp.down_proj.weight.mul_(-1.0)
    backend.refresh()
    assert assert_on_policy(backend, module) != first


@pytest.mark.parametrize("mode", ["merged", "runtime"])
def test_flex_brings_the_adapter_in_as_asked(mode: LoraMode) -> None:
    module = fresh("qwen3")
    model = with_lora(module)
    config = EngineConfig(max_batch_size=4, max_seq_length=96, **DENSE)
    backend = open_live("flex", loaded(module), model, config, lora_mode=mode)
    assert backend.adapter is not None
    assert backend.adapter[1] == mode
    assert_on_policy(backend, model)


def test_an_adapter_that_was_injected_counts_as_well() -> None:
    module = fresh("qwen3")
    with_lora(module)
    assert_on_policy(live("flex", module), module)


@pytest.mark.parametrize("name", ["flex", "hf", "hf-cb"])
def test_another_model_than_the_loaded_one_is_refused(name: str) -> None:
    one, other = fresh("qwen3"), fresh("qwen3")
    with pytest.raises(UsageError, match="not the one that was loaded"):
        open_live(name, loaded(one), with_lora(other), CONFIG)


@pytest.mark.parametrize("name", ["flex", "hf"])
def test_learned_prompts_are_refused(name: str) -> None:
    module = fresh("qwen3")
    config = PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    with pytest.raises(UsageError, match="learned prompts"):
        open_live(name, loaded(module), get_peft_model(module, config), CONFIG)


def test_what_makes_no_sense_is_refused() -> None:
    module = fresh("qwen3")
    with pytest.raises(UsageError, match="--rollout 'hff' is unknown"):
        open_live("hff", loaded(module), module, CONFIG)
    with pytest.raises(UsageError, match="--compile-mode is for hf and hf-cb"):
        open_live("flex", loaded(module), module, CONFIG, RolloutOptions(compile_mode="default"))
    with pytest.raises(UsageError, match="--lora-mode merged means nothing to hf"):
        open_live("hf", loaded(module), with_lora(module), CONFIG, lora_mode="merged")
