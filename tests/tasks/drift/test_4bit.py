"""verify-drift over 4-bit weights, beside and merged: right engines pass, drifting ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.support import drift as doubles
from tests.support.drift import Spoil, drift, failed
from tests.weights.folders import save_folder
from tests.weights.nf4.models import SHAPE, ours

pytest.importorskip("bitsandbytes")

TRAINER = {"trainer_mean_gap", "trainer_max_gap"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    folder = save_folder("qwen3", tmp_path_factory.mktemp("tiny"), **SHAPE["qwen3"])
    loaded = ours(folder, load_in_4bit=True, dtype="float32", device="cpu")
    module: PreTrainedModel = loaded.module
    return module


@pytest.mark.parametrize("mode", ["merged", "runtime"])
def test_an_engine_does_not_drift(model: PreTrainedModel, mode: str) -> None:
    report = drift(model, mode=mode)
    assert failed(report) == set()
    assert (report.mode, report.lora_mode) == ("4bit+lora", mode)
    names = {check.name for check in report.checks}
    assert ("merge_survival" in names) == (mode == "merged")


SPOILT: list[tuple[str, Spoil, set[str]]] = [
    ("merged", doubles.skipping_refreshes, {"no_stale_cache", "adapter_effect"} | TRAINER),
    ("runtime", doubles.skipping_refreshes, {"no_stale_cache", "adapter_effect"} | TRAINER),
    ("merged", doubles.doubling_the_scale, {"merge_survival"} | TRAINER),
    ("runtime", doubles.doubling_the_scale, TRAINER),
    ("merged", doubles.forgetting_the_seed, {"inference_deterministic", "refresh_idempotent"}),
    ("runtime", doubles.keeping_prefixes, {"no_stale_cache"} | TRAINER),
    ("merged", doubles.shaking_scales, {"base_bit_identical"}),
    ("runtime", doubles.shaking_scales, {"base_bit_identical"}),
]


@pytest.mark.parametrize(("mode", "spoil", "expected"), SPOILT)
def test_what_drifts_is_found(
    tmp_path: Path, mode: str, spoil: Spoil, expected: set[str], model: PreTrainedModel
) -> None:
    if spoil is doubles.shaking_scales:  # it changes the base itself
        folder = save_folder("qwen3", tmp_path, **SHAPE["qwen3"])
        loaded = ours(folder, load_in_4bit=True, dtype="float32", device="cpu")
        model = loaded.module
    report = drift(model, spoil, mode=mode)
    assert report.exit_code == 1
    assert expected <= failed(report)
