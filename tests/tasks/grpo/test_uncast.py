"""Under autocast PEFT's round trip through fp32 is left out, and no bit changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear

from flexinfer.tasks.grpo.training import trainer as trainers
from flexinfer.tasks.grpo.training.uncast import casting, plain_layers
from tests.support.grpo import config, parts
from tests.support.rollouts import fresh


def layers(model: Any) -> list[Any]:
    """The LoRA layers of a model."""
    return [module for module in model.modules() if type(module) is Linear]


def trained(settings: Any, seen: set[torch.dtype]) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Train in bf16; return the log and the adapter, and see what enters an A under gradients."""
    with parts("qwen3", settings, dtype=torch.bfloat16) as ready:
        for layer in layers(ready.trainer.model):
            layer.lora_A["default"].register_forward_pre_hook(
                lambda module, args: seen.add(args[0].dtype) if torch.is_grad_enabled() else None
            )
        ready.trainer.train()
        assert all(layer.cast_input_dtype_enabled for layer in layers(ready.trainer.model))
        named = ready.trainer.model.named_parameters()
        held = {name: p.detach().clone() for name, p in named if p.requires_grad}
        return ready.trainer.state.log_history, held


@pytest.mark.parametrize("rollout", ["flex", "hf"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_is_the_same_to_the_bit(
    checkpointing: bool, rollout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hf runs the module outside autocast in every step, where the casts are needed."""
    settings = config(
        tmp_path, gradient_checkpointing=checkpointing, rollout=rollout, max_steps=3,
        learning_rate=1e-2,
    )  # fmt: skip
    seen: set[torch.dtype] = set()
    log, held = trained(settings, seen)
    assert seen == {torch.bfloat16}
    monkeypatch.setattr(trainers, "plain_layers", lambda model: ())
    with_casts: set[torch.dtype] = set()
    other_log, other = trained(settings, with_casts)
    assert with_casts == {torch.float32}
    assert [step.get("grad_norm") for step in log] == [step.get("grad_norm") for step in other_log]
    assert [step.get("loss") for step in log] == [step.get("loss") for step in other_log]
    assert log[0]["grad_norm"] > 1e-4
    assert held.keys() == other.keys()
    assert all(torch.equal(held[name], other[name]) for name in held)


def test_in_fp32_nothing_is_switched(tmp_path: Path) -> None:
    with parts("qwen3", config(tmp_path)) as ready:
        assert ready.trainer._uncast == ()


@pytest.mark.parametrize("options", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_layers_that_compute_on_their_input_keep_their_casts(options: Any) -> None:
    lora = LoraConfig(r=2, target_modules=["q_proj"], **options)
    model = get_peft_model(fresh("qwen3"), lora)
    assert layers(model)
    assert plain_layers(model) == ()


def test_the_switch_is_put_back_as_it_was() -> None:
    model = get_peft_model(fresh("qwen3"), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    plain = plain_layers(model)
    assert len(plain) == len(layers(model)) > 1
    plain[0].cast_input_dtype_enabled = False
    with casting(plain, False):
        with casting(plain, True):
            assert all(layer.cast_input_dtype_enabled for layer in plain)
        assert not any(layer.cast_input_dtype_enabled for layer in plain)
    with pytest.raises(KeyError), casting(plain, False):
        raise KeyError
    switches = [layer.cast_input_dtype_enabled for layer in plain]
    assert switches == [False] + [True] * (len(plain) - 1)
