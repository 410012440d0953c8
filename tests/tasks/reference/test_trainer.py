"""The trainer's side: PEFT's forward over the borrowed module, which is then as it was."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from flexinfer.errors import UsageError
from flexinfer.tasks.reference.linears import dense_weight, linear_of, put
from flexinfer.tasks.reference.trainer import merged_over, peft_over
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.folder import read_folder
from flexinfer.weights.adapters.random_adapter import random_adapter
from tests.support.engines import tiny
from tests.support.oracle import hf_logits
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES
from tests.support.untouched import describe
from tests.weights.adapters.cases import adapted, save, targets_of

PROMPT = prompts_of(20)[0]
CPU = torch.device("cpu")


def random_of(model: PreTrainedModel, rank: int = 4) -> Adapter:
    return random_adapter(targets_of(model), rank, 0, torch.float32, CPU)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("over", ["peft", "merged"])
def test_the_module_is_as_before_even_after_an_error(family: str, over: str) -> None:
    model = tiny(family)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() > 1)
    model.set_attn_implementation("sdpa")
    adapter = random_of(model)
    before, logits = describe(model), hf_logits(model, PROMPT)
    held = peft_over(model, adapter, "random") if over == "peft" else merged_over(model, adapter)

    def fail() -> None:
        with held:
            assert model.config._attn_implementation == "eager"
            assert not torch.equal(hf_logits(model, PROMPT), logits)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert describe(model) == before
    model.set_attn_implementation("eager")
    model.requires_grad_(True)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_forms_agree_in_fp32(family: str) -> None:
    model = tiny(family)
    adapter = random_of(model)
    with peft_over(model, adapter, "random"):
        beside = hf_logits(model, PROMPT)
    with merged_over(model, adapter):
        merged = hf_logits(model, PROMPT)
    torch.testing.assert_close(beside, merged, atol=2e-3, rtol=0)
    assert (beside - hf_logits(model, PROMPT)).abs().max() > 0.05


@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True, "r": 8},
        {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"up_proj": 20}},
        {"target_modules": ["q_proj", "down_proj"], "lora_alpha": 3, "lora_dropout": 0.5},
        {"target_modules": r".*mlp\..*_proj", "init_lora_weights": "gaussian"},
    ],
)
@pytest.mark.parametrize("family", ["qwen3", "gemma4"])
def test_a_folder_is_what_peft_makes_of_it(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny(family)
    folder = save(adapted(model, **options), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = hf_logits(PeftModel.from_pretrained(copy.deepcopy(model), folder), PROMPT)
    with peft_over(model, read_folder(folder, targets_of(model)), str(folder)):
        assert torch.equal(hf_logits(model, PROMPT), expected)


def test_trained_biases_count_and_go_again(tmp_path: Path) -> None:
    model = FAMILIES["qwen3"](attention_bias=True)
    folder = save(adapted(model, bias="all", target_modules=["q_proj"]), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = hf_logits(PeftModel.from_pretrained(copy.deepcopy(model), folder), PROMPT)
    before, adapter = describe(model), read_folder(folder, targets_of(model))
    with peft_over(model, adapter, str(folder)):
        torch.testing.assert_close(hf_logits(model, PROMPT), expected)
    assert describe(model) == before


def test_a_rank_that_peft_does_not_read_is_told(tmp_path: Path) -> None:
    model = tiny("qwen3")
    folder = save(adapted(model), tmp_path)
    adapter = read_folder(folder, targets_of(model))
    name, pair = next(iter(adapter.pairs.items()))
    cut = replace(adapter, pairs={**adapter.pairs, name: pair._replace(a=pair.a[:2])})
    with pytest.raises(UsageError, match="PEFT reads rank 4"), \
            peft_over(model, cut, str(folder)):  # fmt: skip
        pass


def test_a_packed_base_computes_as_its_dequantised_weights() -> None:
    bnb = pytest.importorskip("bitsandbytes")
    model = FAMILIES["qwen3"]().bfloat16()
    name = "model.layers.1.mlp.up_proj"
    layer: Any = model.get_submodule(name)
    packed = bnb.nn.Linear4bit(
        layer.in_features, layer.out_features, bias=False, compute_dtype=torch.bfloat16,
        quant_type="nf4",
    )  # fmt: skip
    packed.weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
    packed = packed.to("cpu")
    put(model, name, packed)
    before, adapter = describe_packed(model), random_of(model)
    with merged_over(model, adapter):
        found = hf_logits(model, PROMPT)
    assert describe_packed(model) == before
    put(model, name, linear_of(dense_weight(packed), None))
    with merged_over(model, adapter):
        assert torch.equal(found, hf_logits(model, PROMPT))
    assert not torch.equal(layer.weight, dense_weight(packed))


def describe_packed(model: PreTrainedModel) -> Any:
    return [(n, id(m)) for n, m in model.named_modules()], describe(model)["state"]
