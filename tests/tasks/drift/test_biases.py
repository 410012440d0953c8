"""A trained bias is moved like A and B: an engine that keeps the old one drifts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.engine.engine import Engine
from flexinfer.tasks.drift.perturb import moved
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.folder import read_folder
from tests.support.drift import Spoil, drift, failed
from tests.support.engines import machinery
from tests.support.tiny import FAMILIES
from tests.weights.adapters.cases import adapted, save, targets_of

BIASES = ["all", "lora_only"]
modes = pytest.mark.parametrize("mode", ["merged", "runtime"])


def biased() -> PreTrainedModel:
    return FAMILIES["qwen3"](attention_bias=True)


def freezing_biases(engine: Engine, module: PreTrainedModel) -> None:
    """Bring A and B in at every refresh, and leave each bias as it was at the start."""
    held: Any = machinery(engine).weights
    first = {name: pair.bias for name, pair in held.adapter.pairs.items()}
    load: Callable[[Adapter], None] = held.weights.load

    def frozen(adapter: Adapter) -> None:
        pairs = {n: pair._replace(bias=first[n]) for n, pair in adapter.pairs.items()}
        load(replace(adapter, pairs=pairs))

    held.weights.load = frozen


def only_at_first() -> Spoil:
    """Spoil the first engine alone: a fresh one is built with the moved bias."""
    seen: list[Engine] = []

    def spoil(engine: Engine, module: PreTrainedModel) -> None:
        seen.append(engine)
        if len(seen) == 1:
            freezing_biases(engine, module)

    return spoil


@modes
@pytest.mark.parametrize("bias", BIASES)
def test_an_engine_with_biases_does_not_drift(tmp_path: Path, mode: str, bias: str) -> None:
    model = biased()
    folder = save(adapted(model, bias=bias, target_modules=["q_proj"]), tmp_path)
    assert failed(drift(model, adapter=str(folder), mode=mode)) == set()


@modes
@pytest.mark.parametrize("bias", BIASES)
def test_a_frozen_bias_is_seen(tmp_path: Path, mode: str, bias: str) -> None:
    model = biased()
    folder = save(adapted(model, bias=bias, target_modules=["q_proj"]), tmp_path)
    report = drift(model, only_at_first(), adapter=str(folder), mode=mode, noise_scale=0.1)
    assert failed(report) >= {"no_stale_cache", "trainer_mean_gap"}
    assert report.exit_code == 1


def test_every_bias_moves_and_a_bias_alone_stays_one(tmp_path: Path) -> None:
    model = biased()
    folder = save(adapted(model, bias="all", target_modules=["q_proj"]), tmp_path)
    adapter = read_folder(folder, targets_of(model))
    other = moved(adapter, 0.01, 0)
    biases = [(pair.bias, other.pairs[name].bias) for name, pair in adapter.pairs.items()]
    assert all(b is not None and not torch.equal(a, b) for a, b in biases if a is not None)
    assert sum(a is not None for a, _ in biases) == 4 * 4
    for name, pair in adapter.pairs.items():
        alone = "q_proj" not in name
        assert torch.equal(pair.a, other.pairs[name].a) == alone
        assert torch.equal(pair.b, other.pairs[name].b) == alone
