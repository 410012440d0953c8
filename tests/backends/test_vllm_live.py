"""vLLM beside a trainer, by a stand-in: what it copies, when, and what of the trainer stays."""

from __future__ import annotations

import os
import random
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from flexinfer.backends.base.protocol import Backend
from flexinfer.backends.live import open_live
from flexinfer.backends.vllm.trained import check_copied
from flexinfer.config import EngineConfig
from flexinfer.errors import EnvironmentUnfit, UsageError
from tests.support.engines import loaded, request
from tests.support.rollouts import fresh, shake, with_lora
from tests.support.tiny import tiny_llama
from tests.support.vllm import FakeLLM, install

CONFIG = EngineConfig(max_batch_size=4, max_seq_length=32, kv_memory=2**20)
FAMILIES = ("qwen3", "llama", "gemma4")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Put a stand-in in the place of vllm; returns the engines that were built."""
    return install(monkeypatch)


def held(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's tensors."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def opened(family: str = "qwen3", **settings: Any) -> tuple[Backend, Any, Any]:
    """Return a back end over an adapted model, the module and the PeftModel."""
    module: Any = fresh(family)
    model = with_lora(module)
    return open_live("vllm", loaded(module), model, replace(CONFIG, **settings)), module, model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_refresh_copies_the_policy_as_peft_merges_it(family: str, built: list[FakeLLM]) -> None:
    names = set(fresh(family).state_dict())
    backend, module, model = opened(family)
    for step in (1, 2):
        shake(model, step)
        before = held(module)
        backend.refresh()
        assert backend.policy_version == len(built[0].loads) == step
        merged = deepcopy(model).merge_and_unload().state_dict()
        copied = built[0].loads[-1]
        assert set(copied) == names == set(merged)
        for name, tensor in copied.items():
            torch.testing.assert_close(tensor, merged[name])
        assert all(torch.equal(before[name], now) for name, now in held(module).items())
    first, second = built[0].loads
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert len(backend.stats.refresh_s) == 2


def test_biases_that_are_trained_are_copied(built: list[FakeLLM]) -> None:
    module: Any = tiny_llama(attention_bias=True)
    config = LoraConfig(r=4, target_modules=["q_proj"], bias="all", init_lora_weights=False)
    model: Any = get_peft_model(module, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(1.0)
    backend = open_live("vllm", loaded(module), model, CONFIG)
    backend.refresh()
    merged = deepcopy(model).merge_and_unload().state_dict()
    assert set(built[0].loads[0]) == set(merged)
    for name, tensor in built[0].loads[0].items():
        torch.testing.assert_close(tensor, merged[name])


def test_without_an_adapter_the_module_itself_is_copied(built: list[FakeLLM]) -> None:
    module: Any = fresh("qwen3")
    backend = open_live("vllm", loaded(module), module, CONFIG)
    backend.refresh()
    assert all(torch.equal(built[0].loads[0][name], now) for name, now in held(module).items())


def test_what_it_is_built_with(built: list[FakeLLM]) -> None:
    torch.manual_seed(3)
    random.seed(3)
    state = torch.get_rng_state(), random.getstate()
    module: Any = fresh("gemma4")
    torch.set_rng_state(state[0])
    backend = open_live("vllm", loaded(module), module, replace(CONFIG, seed=9))
    given = dict(built[0].settings)
    given.pop("model")
    assert given == {
        "dtype": "float32", "max_model_len": 32, "max_num_seqs": 4, "seed": 9,
        "kv_cache_memory_bytes": 2**20, "enforce_eager": False, "load_format": "dummy",
        "logprobs_mode": "processed_logprobs", "enable_prefix_caching": False,
        "skip_tokenizer_init": True, "generation_config": "vllm",
        "distributed_executor_backend": "uni", "max_num_batched_tokens": 16384,
        "gpu_memory_utilization": 0.01,
    }  # fmt: skip
    assert built[0].config_json["architectures"] == ["Gemma4ForCausalLM"]
    assert built[0].config_json["tie_word_embeddings"] is False, "a CPU packs the head"
    assert built[0].in_process
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert any("made anew" in line for line in backend.notices)
    assert "KV cache: 1.0 MiB" in backend.notices


def test_it_serves_and_closes(built: list[FakeLLM]) -> None:
    backend, _, _ = opened()
    backend.refresh()
    state = torch.get_rng_state()
    (output,) = backend.generate([request((5, 6), max_new_tokens=3, ignore_eos=True)])
    assert torch.equal(torch.get_rng_state(), state), "the trainer's, which vLLM draws from"
    assert output.outputs[0].token_ids == (7, 8, 9)
    backend.close()
    assert built[0].ended == 1
    with pytest.raises(UsageError, match="closed"):
        backend.refresh()


def test_what_vllm_says_of_weights_is_told_in_a_line(built: list[FakeLLM]) -> None:
    backend, _, _ = opened()
    built[0].died = True
    with pytest.raises(EnvironmentUnfit, match=r"^vllm: There is no module or parameter named"):
        backend.refresh()
    assert backend.policy_version == 0
    built[0].died = False
    with pytest.raises(UsageError, match="broke off"):
        backend.generate([request((5, 6))])


def test_an_adapter_that_cannot_be_merged_is_the_trainers_error(built: list[FakeLLM]) -> None:
    backend, _, model = opened()
    model.disable_adapter_layers()
    with pytest.raises(UsageError, match="adapters are disabled"):
        backend.refresh()
    assert (backend.policy_version, built[0].loads) == (0, [])
    model.enable_adapter_layers()
    backend.refresh()  # nothing had begun
    assert backend.policy_version == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_memory": None}, "beside a trainer something must"),
        ({"attention": "dense"}, "--attention means nothing to vllm"),
        ({"prefill_tokens": 3}, "--prefill-tokens 3 is less than --max-batch-size 4"),
    ],
)
def test_settings_that_it_does_not_take(
    built: list[FakeLLM], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        opened(**settings)
    assert built == []


def test_a_lora_mode_is_not_for_it(built: list[FakeLLM]) -> None:
    module: Any = fresh("qwen3")
    with pytest.raises(UsageError, match="--lora-mode runtime means nothing to vllm: its adapter"):
        open_live("vllm", loaded(module), with_lora(module), CONFIG, lora_mode="runtime")


def test_a_missing_package_is_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexinfer.backends.choose.find_spec", lambda name: None)
    with pytest.raises(EnvironmentUnfit, match="--rollout vllm: vllm is not installed"):
        opened()


def test_among_processes_of_a_launcher_each_is_vllms_own(
    built: list[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    opened()
    assert built[0].settings["distributed_executor_backend"] == "external_launcher"


def test_weights_in_4_bits_are_not_copied(built: list[FakeLLM]) -> None:
    with pytest.raises(UsageError, match="16 and 32 bits, none of 4"):
        check_copied(True)
    check_copied(False)


def test_a_trainer_on_the_cpu_beside_a_gpu_is_refused(
    built: list[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="--device cpu"):
        opened()
