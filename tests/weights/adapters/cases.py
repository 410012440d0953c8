"""Adapters that tests make with PEFT itself, and what PEFT makes of them: the oracle."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from flexinfer.weights.adapters.adapter import Adapter
from tests.support.tiny import tiny_gemma4, tiny_llama, tiny_qwen3

WEIGHTS = "adapter_model.safetensors"


def targets_of(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """Return (out, in) of all linear maps under the text model's root."""
    return {
        name.removeprefix("model."): (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    }


def adapted(base: PreTrainedModel, seed: int = 0, **options: Any) -> PeftModel:
    """Put a random LoRA on a copy of `base`; B is not zero unless `init_lora_weights` is given."""
    defaults = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"}
    defaults |= {"init_lora_weights": False, "task_type": "CAUSAL_LM"}
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(base), LoraConfig(**defaults | options))
        return train(model)


@torch.no_grad()
def train(model: PeftModel) -> PeftModel:
    """Move every trained tensor (biases and what was initialised to zero, too)."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save(model: PeftModel, folder: Path) -> Path:
    """Save as PEFT does, and return the folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


def edit(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> Path:
    """Change a saved adapter's options and tensors."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(config or {})))
    if tensors is not None:
        save_file(tensors(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    return folder


def merged_by_peft(base: PreTrainedModel, source: Path | PeftModel) -> dict[str, Tensor]:
    """Return the state dict of `base` after PEFT has loaded and merged the adapter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = copy.deepcopy(source)
        if isinstance(source, Path):
            model = PeftModel.from_pretrained(copy.deepcopy(base), source)
        assert isinstance(model, PeftModel)
        return model.merge_and_unload().state_dict()


def merged_by_us(base: PreTrainedModel, adapter: Adapter) -> dict[str, Tensor]:
    """Return the state dict of `base` with scale * b @ a added to weights, and biases set."""
    state = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    for name, pair in adapter.pairs.items():
        state[f"model.{name}.weight"] += pair.scale * pair.b.float() @ pair.a.float()
        if pair.bias is not None:
            state[f"model.{name}.bias"] = pair.bias
    return state


class Case(NamedTuple):
    """A base and options of a LoraConfig over it."""

    base: Callable[[], PreTrainedModel]
    options: Mapping[str, Any]


def biased_llama() -> PreTrainedModel:
    """Build a Llama whose linear maps have biases that are not zero."""
    model = tiny_llama(attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


QV = ["q_proj", "v_proj"]
CASES = {
    "all linear": Case(tiny_qwen3, {}),
    "a list": Case(tiny_llama, {"target_modules": QV}),
    "a regex": Case(tiny_llama, {"target_modules": r".*\.(up|down)_proj"}),
    "shared kv": Case(tiny_gemma4, {}),
    "rslora": Case(tiny_qwen3, {"use_rslora": True}),
    "patterns": Case(
        tiny_qwen3,
        {
            "rank_pattern": {r"layers\.1\..*": 2, "q_proj": 3, r"^model\.layers\.2\.mlp\.\w+": 7},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 1.5, "q_proj": 20, "down_proj": 1},
        },
    ),
    "patterns and rslora": Case(
        tiny_qwen3,
        {"use_rslora": True, "rank_pattern": {"o_proj": 9}, "alpha_pattern": {"up_proj": 3}},
    ),
    "layers": Case(tiny_qwen3, {"target_modules": QV, "layers_to_transform": [0, 3]}),
    "one layer": Case(
        tiny_qwen3, {"target_modules": QV, "layers_to_transform": 2, "layers_pattern": "layers"}
    ),
    "excluded": Case(tiny_qwen3, {"target_modules": QV, "exclude_modules": ["0.self_attn.q_proj"]}),
    "bias of targets": Case(biased_llama, {"target_modules": QV, "bias": "lora_only"}),
    "all biases": Case(biased_llama, {"target_modules": QV, "bias": "all"}),
    "frozen biases": Case(biased_llama, {"target_modules": QV}),
    "dropout": Case(tiny_qwen3, {"lora_dropout": 0.5}),
    "fan in fan out": Case(tiny_qwen3, {"fan_in_fan_out": True}),
    "orthogonal": Case(tiny_qwen3, {"init_lora_weights": "orthogonal"}),
    "gaussian": Case(tiny_qwen3, {"init_lora_weights": "gaussian"}),
    "eva": Case(tiny_qwen3, {"init_lora_weights": "eva"}),
    "mica": Case(tiny_qwen3, {"init_lora_weights": "mica"}),
    "velora": Case(tiny_qwen3, {"velora_config": {"num_groups": 8, "init_type": "random"}}),
}
