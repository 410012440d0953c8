"""`--dry-run`: what a step is made of, whether it fits, and what to lower where it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.core.sizes import human
from flexinfer.engine.memory import SHARE
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan import model as outlines
from flexinfer.tasks.grpo.plan import run as plans
from flexinfer.tasks.grpo.plan.batch import batch_plan
from flexinfer.tasks.grpo.plan.fit import needed
from flexinfer.tasks.grpo.plan.run import Plan, plan_run, render
from flexinfer.weights import load as loading
from flexinfer.weights.names import ModelName

TINY = ModelOptions(model="tiny-gemma4", device="cpu")
LARGE = ModelOptions(model="qwen3-4b", dtype="bfloat16", device="cpu")
GIB = 2**30
MATH: dict[str, Any] = {
    "dataset": "gsm8k", "max_prompt_length": 512, "sleep": True, "gradient_checkpointing": True,
}  # fmt: skip


def size(plan: Plan, name: str) -> int:
    """The bytes of the one part whose name begins so."""
    (found,) = (part.n_bytes for part in plan.parts if part.name.startswith(name))
    return found


def test_batches_are_counted_as_trl_counts_them() -> None:
    config = GrpoConfig(
        max_steps=10, num_generations=4, per_device_batch_size=8,
        gradient_accumulation_steps=3, max_completion_length=100,
    )  # fmt: skip
    batch = batch_plan(config, longest_prompt=28, processes=2)
    assert batch.completions_per_step == 48
    assert (batch.prompts_per_step, batch.generations_per_prompt) == (12, 4)
    assert (batch.forward_passes, batch.completions_per_pass) == (3, 8)
    assert batch.tokens_per_pass == 8 * 128
    assert batch.completion_tokens_per_step == 4800
    assert (batch.optimizer_steps, batch.completions) == (10, 480)
    assert batch.completion_tokens == 48000


def test_a_plan_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", lambda *_: pytest.fail("loaded"))
    plan = plan_run(LARGE, EngineConfig(), GrpoConfig(**MATH), available=80 * GIB)
    assert plan.model_name == "qwen3-4b"
    assert size(plan, "weights") == 8_044_936_704
    assert all(p.is_meta for p in outlines.outline(LARGE).module.parameters())


def test_what_is_there_at_once_is_counted_at_once() -> None:
    plan = plan_run(LARGE, EngineConfig(), GrpoConfig(**MATH), available=80 * GIB)
    always = sum(part.n_bytes for part in plan.parts if part.phase == "always")
    rollout = sum(part.n_bytes for part in plan.parts if part.phase == "rollout")
    training = sum(part.n_bytes for part in plan.parts if part.phase == "training")
    assert plan.wanted == always + max(rollout, training)
    assert plan.least < plan.wanted
    assert size(plan, "KV cache") == plan.kv.wanted
    assert (plan.kv.longest, plan.kv.sequences) == (1024, 64)
    assert (plan.fits, plan.at_once, plan.exit_code, plan.hints) == (True, 64, 0, ())


def test_short_memory_means_fewer_sequences_at_once() -> None:
    asked: Any = (LARGE, EngineConfig(), GrpoConfig(**MATH))
    base = plan_run(*asked, available=80 * GIB)
    fixed = base.wanted - base.kv.wanted
    half = plan_run(*asked, available=int(fixed + base.kv.wanted / 2 / SHARE))
    assert half.fits
    assert half.at_once == 31  # a page is scratch
    needs = needed(half.parts[:-1], replace(half.parts[-1], n_bytes=half.granted))
    assert half.verdict == (
        f"fits: needs {needs / GIB:.1f} GiB, with KV for 31 of 64 sequences of 1024 tokens, "
        f"the others wait; {half.available / GIB:.1f} GiB available on cpu"
    )
    assert needs <= half.available
    assert base.verdict == (
        f"fits: needs {base.wanted / GIB:.1f} GiB, with KV for all 64 sequences of 1024 tokens; "
        "80.0 GiB available on cpu"
    )
    granted = EngineConfig(kv_memory=base.kv.wanted // 2)
    assert plan_run(LARGE, granted, asked[2], available=80 * GIB).at_once == 31


def test_what_does_not_fit_is_exit_4_with_what_to_lower() -> None:
    none = plan_run(LARGE, EngineConfig(), GrpoConfig(**MATH), available=8 * GIB)
    assert (none.fits, none.exit_code) == (False, 4)
    assert none.verdict == (
        f"does not fit: needs {none.least / GIB:.1f} GiB, even with KV for 1 of 64 sequences of "
        "1024 tokens; 8.0 GiB available on cpu"
    )
    assert any("--load-in-4bit" in hint for hint in none.hints)
    assert any("--lora-mode runtime" in hint for hint in none.hints)
    wide = GrpoConfig(**MATH, per_device_batch_size=512)
    training = plan_run(LARGE, EngineConfig(), wide, available=40 * GIB)
    assert not training.fits
    assert training.hints[0].startswith("lower --per-device-batch-size")


def test_more_kv_than_the_device_has_does_not_fit() -> None:
    plan = plan_run(TINY, EngineConfig(kv_memory=2 * GIB), GrpoConfig(), 8, available=GIB)
    assert (plan.exit_code, plan.hints) == (4, ("lower --kv-memory",))
    assert plan.verdict == ("does not fit: --kv-memory asks for 2.0 GiB, 1.0 GiB available on cpu")


def test_less_kv_than_one_sequence_needs_does_not_fit() -> None:
    plan = plan_run(TINY, EngineConfig(kv_memory=2**12), GrpoConfig(), 8, available=GIB)
    assert (plan.exit_code, plan.hints) == (4, ("raise --kv-memory",))
    assert plan.verdict == (
        f"does not fit: 4.0 KiB for the KV cache, one sequence of {plan.kv.longest} tokens needs "
        f"{human(plan.kv.least)}; 1.0 GiB available on cpu"
    )


def test_other_back_ends_keep_no_copy() -> None:
    own = plan_run(TINY, EngineConfig(), GrpoConfig(), 8, available=GIB)
    other = plan_run(TINY, EngineConfig(), GrpoConfig(rollout="hf"), 8, available=GIB)
    assert size(own, "engine's copy, merged") > 0
    assert not [part for part in other.parts if part.name.startswith("engine")]


def test_an_unknown_prompt_length_is_assumed_and_said() -> None:
    plan = plan_run(LARGE, EngineConfig(), GrpoConfig(dataset="gsm8k"), available=80 * GIB)
    assert plan.kv.longest == 512 + 512
    assert "prompts: up to 512 tokens assumed" in plan.notices
    sums = plan_run(TINY, EngineConfig(), GrpoConfig(max_completion_length=8), available=GIB)
    assert sums.kv.longest == 128 + 8
    known = plan_run(LARGE, EngineConfig(), GrpoConfig(dataset="gsm8k"), 100, available=80 * GIB)
    assert known.kv.longest == 612
    assert not any("assumed" in line for line in known.notices)


def test_what_no_model_can_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="8 tokens and --max-completion-length 5000") as long:
        plan_run(TINY, EngineConfig(), GrpoConfig(max_completion_length=5000), 8)
    assert "--max-seq-length" not in long.value.message
    assert long.value.hint == "give --max-completion-length 4088"
    nowhere = ModelName(name="a/b", hub_ids=("a/b",))
    monkeypatch.setattr(outlines.names, "resolve", lambda model: nowhere)
    with pytest.raises(EnvironmentUnfit, match="--dry-run: the config of a/b is not on") as caught:
        plan_run(ModelOptions(model="a/b"), EngineConfig(), GrpoConfig())
    assert caught.value.hint


def test_each_of_several_processes_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU they share what memory there is."""
    monkeypatch.setattr(plans, "available_bytes", lambda device: 8 * GIB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config = GrpoConfig(per_device_batch_size=64, gradient_accumulation_steps=2)
    one = plan_run(TINY, EngineConfig(), config, 8, available=GIB)
    two = plan_run(TINY, EngineConfig(), config, 8, processes=2)
    assert (one.parts, two.available) == (two.parts, 4 * GIB)
    assert "processes:" not in render(one, as_json=False)
    said = render(two, as_json=False).splitlines()
    assert said[1] == (
        "2 processes: a step has 256 completions, 128 in each process; "
        "memory is that of one process"
    )
    assert ["prompts", "per", "step", "64"] in [line.split() for line in said]


def test_it_is_read_by_people_and_by_programs() -> None:
    config = GrpoConfig(per_device_batch_size=64, gradient_accumulation_steps=1)
    plan = plan_run(TINY, EngineConfig(), config, 8, available=GIB)
    text = render(plan, as_json=False)
    lines = [line.split() for line in text.splitlines()]
    assert ["completions", "per", "step", "64"] in lines
    assert ["weights", "always", "4.7", "MiB"] in lines
    assert text.splitlines()[-1].startswith("fits: needs ")
    document = json.loads(render(plan, as_json=True))
    assert (document["command"], document["dry_run"], document["fits"]) == (
        "train-grpo",
        True,
        True,
    )
    assert {"schema_version", "config", "environment", "started_at"} <= set(document)
    assert document["batch"]["completions_per_step"] == 64
    assert {"name": "weights", "phase": "always", "n_bytes": size(plan, "weights")} in document[
        "parts"
    ]
    assert document["kv"]["wanted"] == plan.kv.wanted
