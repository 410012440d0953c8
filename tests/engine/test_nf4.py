"""Engines over 4-bit weights: bitsandbytes' own forward, with an adapter PEFT's over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.core.sizes import human
from flexinfer.engine.engine import Engine
from flexinfer.kernels.linear import Packed
from flexinfer.kernels.nf4 import Nf4
from flexinfer.models.catalog import build_decoder
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.adapters.merged import MergedWeights
from flexinfer.weights.adapters.runtime import RuntimeWeights
from flexinfer.weights.digest import digest
from flexinfer.weights.load import LoadedModel, load
from tests.engine.test_adapters import NEW, perturb
from tests.support.engines import LIMITS, assert_greedy, complete
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES
from tests.weights.folders import save_folder
from tests.weights.nf4.models import SHAPE, theirs

PROMPTS = prompts_of(9, 3, 17, 8)
families = pytest.mark.parametrize("family", FAMILIES)


def four_bits(family: str, tmp_path: Path) -> LoadedModel:
    """Load a tiny model, quantised on the way."""
    folder = save_folder(family, tmp_path, **SHAPE[family])
    return load(ModelOptions(model=str(folder), load_in_4bit=True, dtype="float32", device="cpu"))


def engine_over(model: LoadedModel, **config: Any) -> Engine:
    return Engine(model, EngineConfig(**{"attention": "dense"} | dict(LIMITS) | config))


@families
def test_it_is_bitsandbytes_forward(family: str, tmp_path: Path) -> None:
    model = four_bits(family, tmp_path)
    before = digest(model.module)
    with engine_over(model) as engine:
        assert_greedy(model.module, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
    assert digest(model.module) == before


@families
def test_with_an_adapter_it_is_pefts(family: str, tmp_path: Path) -> None:
    """Beside the base by default; merged into a 16-bit (here fp32) copy where asked for."""
    model = four_bits(family, tmp_path)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    peft: Any = get_peft_model(model.module, config).eval()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        perturb(peft)
    base = digest(peft)
    for mode, kind in ((None, RuntimeWeights), ("merged", MergedWeights)):
        given = replace(model, adapter=AdapterChoice(peft, mode))
        with engine_over(given) as engine:
            assert isinstance(engine.machinery.weights.weights, kind)
            assert_greedy(peft, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
            perturb(peft, 0.2)
            engine.refresh()
            assert_greedy(peft, PROMPTS, complete(engine, PROMPTS, max_new_tokens=NEW))
    assert digest(peft) == base


@families
def test_groups_are_one_product(family: str, tmp_path: Path) -> None:
    layer: Any = build_decoder(four_bits(family, tmp_path).module).layers[0].weights
    for group in (layer.gate_up, layer.projections if family == "gemma4" else layer.qkv):
        assert isinstance(group, Packed)
        assert isinstance(group.whole, Nf4)


def test_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    model = four_bits("qwen3", tmp_path)
    with engine_over(model, batch_invariant=True) as engine:
        together = complete(engine, PROMPTS, max_new_tokens=NEW)
        assert together == [complete(engine, [p], max_new_tokens=NEW)[0] for p in PROMPTS]


def test_weights_that_are_copied_to_lie_together_are_told(tmp_path: Path) -> None:
    """Those that transformers loaded lie apart; those of the own loader are the module's."""
    said = "of weights copied, so that those of one input lie together"
    model = four_bits("qwen3", tmp_path)
    with engine_over(model) as engine:
        assert not any(said in line for line in engine.notices)
    apart = replace(model, module=theirs(tmp_path))
    groups = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    held: Any = dict(apart.module.named_parameters())
    copied = sum(t.nbytes for name, t in held.items() if name.split(".")[-2] in groups)
    for choice in (None, AdapterChoice("random:4", "runtime")):
        with engine_over(replace(apart, adapter=choice)) as engine:
            assert any(f"4-bit: {human(copied)} {said}" in line for line in engine.notices)
    with engine_over(replace(apart, adapter=AdapterChoice("random:4", "merged"))) as engine:
        assert not any(said in line for line in engine.notices)
