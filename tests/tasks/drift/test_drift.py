"""An engine as it is passes every check, and one that drifts in any way fails those it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flexinfer.errors import UsageError
from flexinfer.tasks.drift.run import render
from flexinfer.weights.adapters.rules import LoraRules
from tests.support import drift as doubles
from tests.support.drift import Spoil, drift, failed
from tests.support.engines import OVERRIDES, tiny
from tests.support.tiny import FAMILIES
from tests.support.untouched import describe
from tests.weights.adapters.cases import adapted, edit, save

TRAINER = {"trainer_mean_gap", "trainer_max_gap", "trainer_k3"}
ALWAYS = {
    "base_bit_identical",
    "inference_deterministic",
    "restored_bit_equal",
    "refresh_idempotent",
    "adapter_effect",
    "no_stale_cache",
    "same_in_any_batch",
    *TRAINER,
}
INVARIANT = "same_bits_batch_invariant"
modes = pytest.mark.parametrize("mode", ["merged", "runtime"])


@modes
@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_does_not_drift(family: str, mode: str) -> None:
    model = tiny(family)
    before = describe(model)
    report = drift(model, mode=mode)
    assert failed(report) == set()
    survives = {"merge_survival"} if mode == "merged" else set()
    assert {check.name for check in report.checks} == ALWAYS | survives | {INVARIANT}
    assert (report.mode, report.lora_mode) == ("fp32+lora", mode)
    assert describe(model) == before


@modes
@pytest.mark.parametrize("family", FAMILIES)
def test_nor_in_bf16(family: str, mode: str) -> None:
    model = FAMILIES[family](**OVERRIDES.get(family, {})).bfloat16()
    report = drift(model, mode=mode)
    assert failed(report) == set()
    gap = report.trainer["adapter as given"]["gap"]
    assert gap["mean_gap"] > 1e-3, "rounding shows"
    kept = next((c for c in report.checks if c.name == "merge_survival"), None)
    assert (kept is None) == (mode == "runtime")
    assert report.mode == "bf16+lora"


def test_nor_in_batches_of_the_same_bits() -> None:
    report = drift(tiny("qwen3"), engine={"batch_invariant": True})
    assert failed(report) == set()
    found = {check.name: check for check in report.checks}["same_in_any_batch"]
    assert (found.measured, found.limit) == (0, 0)


SPOILT: list[tuple[str, Spoil, set[str]]] = [
    ("llama", doubles.merging_in_place, {"base_bit_identical"}),
    ("qwen3", doubles.skipping_refreshes, {"no_stale_cache", "adapter_effect"} | TRAINER),
    ("qwen3", doubles.adding_up, {"refresh_idempotent", "restored_bit_equal", "merge_survival"}),
    ("llama", doubles.doubling_the_scale, {"merge_survival"} | TRAINER),
    ("gemma4", doubles.keeping_prefixes, {"no_stale_cache"} | TRAINER),
    ("gemma4", doubles.shifting_windows(1), TRAINER),
    ("gemma4", doubles.shifting_windows(-1), TRAINER),
    ("llama", doubles.mixing_rows, {"same_in_any_batch"}),
    ("qwen3", doubles.forgetting_the_seed, {"inference_deterministic", "refresh_idempotent"}),
]


@pytest.mark.parametrize(("family", "spoil", "expected"), SPOILT)
def test_what_drifts_is_found(family: str, spoil: Spoil, expected: set[str]) -> None:
    model = FAMILIES[family](**OVERRIDES.get(family, {}))
    report = drift(model, spoil)
    assert report.exit_code == 1
    assert expected <= failed(report)


@pytest.mark.parametrize("spoil", [doubles.doubling_the_scale, doubles.skipping_refreshes])
def test_what_drifts_beside_the_base_is_found(spoil: Spoil) -> None:
    assert failed(drift(tiny("llama"), spoil, mode="runtime")) >= TRAINER


@pytest.mark.parametrize(
    "spoil",
    [
        doubles.merging_in_place,
        doubles.skipping_refreshes,
        doubles.keeping_prefixes,
        doubles.doubling_the_scale,
    ],
)
def test_what_drifts_in_bf16_is_found(spoil: Spoil) -> None:
    report = drift(FAMILIES["qwen3"]().bfloat16(), spoil)
    found = failed(report)
    wanted = "base_bit_identical" if spoil is doubles.merging_in_place else "trainer_mean_gap"
    assert wanted in found


def test_the_document_is_the_contracts() -> None:
    report = drift(tiny("qwen3"))
    document = json.loads(render(report, as_json=True))
    assert document["command"] == "verify-drift"
    assert {"schema_version", "config", "environment", "started_at"} <= document.keys()
    assert document["base_bit_identical"] is document["inference_deterministic"] is True
    assert document["base_hash_before"] == document["base_hash_after"]
    first, last = (f"inference_hash_{w}" for w in ("initial_merged", "after_restore"))
    assert document[first] == document[last]
    assert (document["n_iters"], document["noise_scale"]) == (2, 0.01)
    assert (document["mode"], document["model_name"]) == ("fp32+lora", "tiny")
    assert document["config"]["model"]["adapter"] == document["adapter"] == "random:8"
    for check in document["checks"]:
        assert check.keys() == {"name", "passed", "measured", "limit", "detail"}
        assert isinstance(check["passed"], bool)
    given = document["trainer"]["adapter as given"]
    assert given["gap"].keys() >= {
        "mean_gap", "max_gap", "k3", "ratio_min", "ratio_mean", "ratio_max", "tokens",
    }  # fmt: skip
    assert given["gap"]["tokens"] == 36


def test_the_first_divergence_is_told_with_both_values() -> None:
    report = drift(tiny("llama"), doubles.doubling_the_scale, mode="runtime")
    text = render(report, as_json=False)
    told = 0
    for state in report.trainer.values():
        found = state["first_divergence"]
        assert found["prompt"] in range(3)
        assert found["prompt_tokens"] == report.prompt_tokens[found["prompt"]]
        assert abs(found["rollout"] - found["trainer"]) > state["limits"]["max_gap"]
        values = f"rollout {found['rollout']:.5f}, trainer {found['trainer']:.5f}"
        told += f"new token {found['position']}, token {found['token']}: {values}" in text
    assert told == 1, "of the state where the gap is largest"
    assert "verdict: drift (" in text


def test_a_merge_in_bf16_says_what_it_rounds_away() -> None:
    model = FAMILIES["qwen3"]().bfloat16()
    report = drift(model, adapter="random:2")
    detail = {check.name: check.detail for check in report.checks}["merge_survival"]
    mean = float(detail.partition("mean ")[2].partition(",")[0])
    assert 0.5 < mean < 0.999
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_a_folder_is_scored_by_the_scale_that_peft_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("qwen3")
    options = {"use_rslora": True, "alpha_pattern": {"layers.1.mlp.up_proj": 3}}
    folder = save(adapted(model, **options), tmp_path)
    for mode in ("merged", "runtime"):
        report = drift(model, adapter=str(folder), mode=mode)
        assert failed(report) == set()
        assert report.adapter == str(folder)
    monkeypatch.setattr(LoraRules, "scale", lambda self, module: 6 / 4)  # rslora is ignored
    assert failed(drift(model, adapter=str(folder))) == TRAINER


def test_an_adapter_without_effect_is_told(tmp_path: Path) -> None:
    model = tiny("llama")
    folder = save(adapted(model, init_lora_weights=False), tmp_path)
    zeroed = edit(folder, tensors=lambda t: {k: v * ("lora_A" in k) for k, v in t.items()})
    report = drift(model, adapter=str(zeroed))
    assert failed(report) == {"adapter_effect"}
    assert "merge_survival" not in {check.name for check in report.checks}


def test_twenty_cycles_in_bf16_leave_tied_weights_alone() -> None:
    model = FAMILIES["gemma4"]().bfloat16()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert failed(drift(model, cycles=20)) == set()


def test_a_window_that_no_prompt_crosses_is_said() -> None:
    said: list[str] = []
    drift(tiny("gemma4"), engine={"max_seq_length": 8}, max_new_tokens=4, notice=said.append)
    assert any("window 8 is not crossed: sequences have up to" in line for line in said)
    assert "--adapter not given: random:8, seeded and with an effect" in said
    with pytest.raises(UsageError, match="--max-new-tokens 12 leaves no room"):
        drift(tiny("qwen3"), engine={"max_seq_length": 12})
