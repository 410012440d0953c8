"""Biases that an adapter trains: PEFT's own forward with them, refreshed to and fro."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.kernels.linear import Packed
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.digest import digest
from flexinfer.weights.load import LoadedModel
from tests.engine.test_adapters import MODES, NEW, PROMPTS
from tests.support.engines import LIMITS, assert_greedy, complete, ids_of, loaded
from tests.weights.adapters.cases import biased_llama
from tests.weights.folders import save_folder
from tests.weights.nf4.models import ours

TARGETS = ["q_proj", "v_proj", "gate_proj", "down_proj"]
bases = pytest.mark.parametrize("base", ["plain", "apart", "4 bits"])
modes = pytest.mark.parametrize("mode", MODES)


def based(base: str, folder: Path) -> LoadedModel:
    """Return a Llama with biases that are not zero: packed by the loader, as made, or in 4 bits."""
    if base == "apart":
        return loaded(biased_llama())
    save_folder("llama", folder, attention_bias=True, mlp_bias=True)
    model = ours(folder, load_in_4bit=base == "4 bits", dtype="float32", device="cpu")
    with torch.no_grad():
        for name, tensor in model.module.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    return model


def trained(model: LoadedModel, bias: str) -> Any:
    """Put LoRA over a model that trains biases, too, and take a step."""
    config = LoraConfig(r=4, target_modules=TARGETS, bias=bias, task_type="CAUSAL_LM")
    peft: Any = get_peft_model(model.module, config).eval()
    step(peft, 1)
    return peft


@torch.no_grad()
def step(peft: nn.Module, seed: int) -> dict[str, Tensor]:
    """Move what is trained by noise; return it as it was before.

    Three times as much makes a model whose own fp32 rounding is as large as the tolerance.
    """
    before = {n: p.detach().clone() for n, p in peft.named_parameters() if p.requires_grad}
    noise = torch.Generator().manual_seed(seed)
    for name in before:
        tensor = peft.get_parameter(name)
        tensor.add_(torch.randn(tensor.shape, generator=noise), alpha=0.1)
    return before


def only_biases(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in held.items() if name.endswith("bias")}


@torch.no_grad()
def put_back(peft: nn.Module, held: dict[str, Tensor]) -> None:
    """Give parameters their values of before."""
    for name, tensor in held.items():
        peft.get_parameter(name).copy_(tensor)


def engine_over(model: LoadedModel, source: Any, mode: Any) -> Engine:
    config = EngineConfig(attention="dense", **LIMITS)
    return Engine(replace(model, adapter=AdapterChoice(source, mode)), config)


@pytest.mark.parametrize(
    ("base", "bias"), [("plain", "lora_only"), ("apart", "all"), ("4 bits", "all")]
)
@modes
def test_it_is_pefts_forward_to_and_fro(bias: str, mode: str, base: str, tmp_path: Path) -> None:
    model = based(base, tmp_path)
    peft = trained(model, bias)
    with engine_over(model, peft, mode) as engine:
        before, sha = complete(engine, PROMPTS, max_new_tokens=NEW), engine.adapter_sha
        assert_greedy(peft, PROMPTS, before)
        held = step(peft, 2)
        engine.refresh()
        assert_greedy(peft, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
        after = complete(engine, PROMPTS, max_new_tokens=NEW)
        put_back(peft, only_biases(held))
        engine.refresh()
        assert complete(engine, PROMPTS, max_new_tokens=NEW) != after
        assert_greedy(peft, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
        put_back(peft, held)
        engine.refresh()
        assert complete(engine, PROMPTS, max_new_tokens=NEW) == before
        assert engine.adapter_sha == sha


@bases
@modes
def test_a_saved_bias_takes_the_place_of_the_bases(mode: str, base: str, tmp_path: Path) -> None:
    """Refreshed from a folder and back to the base's own bias; the base itself is not written."""
    model = based(base, tmp_path / "model")
    plain = model.module
    digests = digest(plain)
    with engine_over(model, "random:4", mode) as engine:
        start = engine.machinery.weights.adapter
        assert start is not None
        before = ids_of(complete(engine, PROMPTS, max_new_tokens=NEW))
        name = "layers.0.self_attn.v_proj"
        bias = plain.get_parameter(f"model.{name}.bias") + 3
        other = replace(start, pairs={**start.pairs, name: start.pairs[name]._replace(bias=bias)})
        engine.refresh(other)
        assert ids_of(complete(engine, PROMPTS, max_new_tokens=NEW)) != before
        engine.refresh(start)
        assert ids_of(complete(engine, PROMPTS, max_new_tokens=NEW)) == before
    assert digest(plain) == digests


@modes
@pytest.mark.parametrize("base", ["plain", "4 bits"])
def test_biases_keep_a_group_in_one_product(mode: str, base: str, tmp_path: Path) -> None:
    with engine_over(based(base, tmp_path), "random:4", mode) as engine:
        layer: Any = engine.machinery.programs.decode_decoder.layers[0].weights
        assert isinstance(layer.qkv, Packed)
        assert isinstance(layer.gate_up, Packed)


def test_scales_of_a_group_are_held_once(tmp_path: Path) -> None:
    with engine_over(based("4 bits", tmp_path), "random:4", "runtime") as engine:
        weights: Any = engine.machinery.weights.weights
        layer: Any = engine.machinery.programs.decode_decoder.layers[0].weights
        whole = layer.qkv.whole.base
        for name, rows in zip("qkv", layer.qkv.widths, strict=True):
            member = weights.leaf(f"layers.0.self_attn.{name}_proj").base
            assert member.absmax.untyped_storage()._cdata == whole.absmax.untyped_storage()._cdata
            assert len(member.absmax) == rows


@bases
def test_a_base_whose_biases_are_trained_is_seen_at_once(base: str, tmp_path: Path) -> None:
    """Without an adapter nothing is copied that a trainer may change."""
    model = based(base, tmp_path)
    with Engine(model, EngineConfig(attention="dense", **LIMITS)) as engine:
        assert_greedy(model.module, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
        with torch.no_grad():
            for name, tensor in model.module.named_parameters():
                if name.endswith("bias"):
                    tensor.add_(torch.randn(tensor.shape) * 0.5)
        engine.refresh()
        assert_greedy(model.module, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
