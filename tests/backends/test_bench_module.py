"""bench over the Hugging Face back ends: figures of real runs, adapters, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.backends.choose import load_checkpoint
from flexinfer.backends.huggingface.peft_put import put_adapter
from flexinfer.config import EngineConfig, ModelOptions, quiet
from flexinfer.errors import UsageError
from flexinfer.tasks.bench.measure.rig import Rig
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, run_bench
from flexinfer.weights.adapters.choice import AdapterChoice
from tests.support.engines import request
from tests.support.rollouts import PROMPTS, fresh, own_logits, with_lora
from tests.support.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("qwen3", tmp_path_factory.mktemp("tiny")))


def model(folder: str, **given: Any) -> ModelOptions:
    return ModelOptions(model=folder, load_format="dummy", device="cpu", dtype="float32", **given)


HERE = Rig(apart=False)
"""All lanes in this process: tests/tasks/bench/test_lanes.py has them in processes of their own."""


def bench(options: ModelOptions, *backends: str, **given: Any) -> BenchReport:
    settings = {"n_prompts": 3, "n_rounds": 2, "max_new_tokens": 6, "prompt_length": "4:12"}
    engine = EngineConfig(max_batch_size=3)
    config = BenchConfig(backends=backends, **settings | given)
    return run_bench(options, engine, config, rig=HERE)


def test_side_by_side(folder: str) -> None:
    report = bench(model(folder), "flex", "hf", "hf-cb")
    assert [row.backend for row in report.results] == ["flex", "hf", "hf-cb"]
    assert [row.error for row in report.results] == [None] * 3
    assert report.verdict == "ok"
    for row in report.results:
        assert row.round_tokens == (18, 18)
        assert row.gate is not None
        assert row.gate.problem is None
        assert row.gate.checked > 0
        assert row.capture_cudagraph is False
        assert row.decode_tps_median is not None
        assert row.ttft_s is not None
        assert 0 < row.ttft_s < row.median_wall_s
        assert row.n_prompt_tokens == row.prefill_tokens
    flex, hf, cb = report.results
    assert hf.step_ms is not None
    assert cb.step_ms is None
    assert any("model.generate" in n or "generate: transformers'" in n for n in hf.notices)
    assert flex.sample_completions == hf.sample_completions


@pytest.mark.parametrize("backend", ["hf", "hf-cb"])
def test_an_adapter_runs_beside_the_module_and_passes_the_gate(folder: str, backend: str) -> None:
    options = model(folder, adapter="random:4", lora_mode="runtime")
    rows = bench(options, "flex", backend, temperature=0.0).results
    assert [(row.error, row.lora_mode) for row in rows] == [(None, "runtime")] * 2
    assert rows[0].sample_completions == rows[1].sample_completions
    assert rows[1].refresh_s == 0.0
    assert any("LoRA: runtime" in line for line in rows[1].notices)


def test_without_a_mode_flex_merges_and_the_module_does_not(folder: str) -> None:
    rows = bench(model(folder, adapter="random:4"), "flex", "hf", n_rounds=1).results
    assert [row.lora_mode for row in rows] == ["merged", "runtime"]


def test_what_the_module_cannot_do_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="--lora-mode merged is of flex alone"):
        bench(model(folder, adapter="random:4", lora_mode="merged"), "hf")
    engine = EngineConfig(max_batch_size=3, attention="dense")
    config = BenchConfig(
        backends=("flex", "hf"), n_prompts=3, n_rounds=1, max_new_tokens=4, prompt_length="4:9"
    )
    rows = run_bench(model(folder), engine, config, rig=HERE).results
    assert [row.error_code for row in rows] == [None, None]
    assert "hf: --attention left out, it means nothing to it" in rows[1].notices
    with pytest.raises(UsageError, match="--attention means nothing to hf"):
        run_bench(model(folder), engine, replace(config, backends=("hf",)))


def test_a_folders_adapter_is_pefts_own(tmp_path: Path) -> None:
    trained = with_lora(fresh("llama"))
    trained.save_pretrained(tmp_path)
    module = fresh("llama")
    adapter = put_adapter(module, AdapterChoice(str(tmp_path)))
    assert adapter.rank == 4
    for prompt in PROMPTS[:3]:
        found, own = (own_logits(m, prompt, (5, 6, 7)) for m in (module, trained))
        torch.testing.assert_close(found, own, atol=1e-5, rtol=0)
        plain = own_logits(fresh("llama"), prompt, (5, 6, 7))
        assert (found - plain).abs().max() > 0.1
    assert not any(p.requires_grad for p in module.parameters())


def test_back_ends_follow_each_other_over_one_module(folder: str) -> None:
    checkpoint = load_checkpoint("hf", model(folder))
    asked = [request(prompt, max_new_tokens=5) for prompt in PROMPTS]
    found = []
    for size in (1, 4):
        config = EngineConfig(max_batch_size=size, max_seq_length=64)
        backend = checkpoint.open(config, quiet)
        found.append([output.outputs[0].token_ids for output in backend.generate(asked)])
        backend.close()
    assert found[0] == found[1]
    assert (checkpoint.backend_name, checkpoint.device) == ("hf", "cpu")
    assert checkpoint.vocab_size == 512
    assert checkpoint.load_s > 0
