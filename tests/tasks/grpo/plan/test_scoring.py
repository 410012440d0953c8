"""Held-out problems are answered in a batch of their own size, as far as memory goes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions, quiet
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.run import Plan, plan_run, render
from flexinfer.tasks.grpo.plan.scoring import AT_ONCE, held_out_of
from flexinfer.tasks.grpo.setup import assemble
from flexinfer.tasks.grpo.work import Work, work_of
from flexinfer.weights.load import load
from tests.support.engines import loaded
from tests.support.tiny import save_tiny

LARGE = ModelOptions(model="qwen3-4b", dtype="bfloat16", device="cpu")
GIB = 2**30
STEP: dict[str, Any] = {
    "num_generations": 2, "per_device_batch_size": 2, "gradient_accumulation_steps": 1,
    "max_prompt_length": 128,
}  # fmt: skip
PAIR = EngineConfig(max_batch_size=2)


def plan(
    available: int,
    engine: EngineConfig = PAIR,
    *,
    widen: bool = True,
    held_out: int = 200,
    **values: Any,
) -> Plan:
    """Plan steps of two completions, and so many held-out problems."""
    config = GrpoConfig(**STEP | values)
    return plan_run(LARGE, engine, config, available=available, held_out=held_out, widen=widen)


def test_a_small_step_does_not_make_held_out_problems_wait() -> None:
    wide = plan(140 * GIB)
    assert (wide.scored_at_once, wide.kv.sequences, wide.at_once) == (AT_ONCE, 64, 64)
    assert wide.config["engine"]["max_batch_size"] == 64
    assert plan(140 * GIB, held_out=5).scored_at_once == 5
    assert plan(140 * GIB, held_out=0).kv.sequences == 2
    large = plan(140 * GIB, EngineConfig(max_batch_size=100))
    assert (large.scored_at_once, large.kv.sequences) == (100, 100)


def test_a_batch_that_somebody_chose_is_kept() -> None:
    chosen = plan(140 * GIB, widen=False)
    assert (chosen.scored_at_once, chosen.kv.sequences) == (2, 2)


def test_vllm_scores_as_many() -> None:
    theirs, ours = plan(140 * GIB, rollout="vllm"), plan(140 * GIB)
    assert (theirs.scored_at_once, theirs.kv.sequences) == (ours.scored_at_once, ours.kv.sequences)


@pytest.mark.parametrize("sleep", [False, True])
@pytest.mark.parametrize("rollout", ["flex", "hf", "hf-cb"])
def test_what_fitted_before_still_fits(rollout: str, sleep: bool) -> None:
    """Wider by what is left beside everything else, and never narrower than the step."""
    values: dict[str, Any] = {"rollout": rollout, "sleep": sleep}
    narrow = plan(140 * GIB, widen=False, **values)
    most = 0
    for extra in (0, GIB, 2 * GIB, 4 * GIB, 9 * GIB):
        available = narrow.wanted + extra
        wide = plan(available, **values)
        assert wide.fits
        assert wide.wanted <= available
        assert max(2, most) <= wide.kv.sequences <= 64
        most = wide.kv.sequences
    assert most == 64
    if rollout == "flex" and not sleep:
        assert plan(narrow.wanted, **values).kv.sequences == 2


def test_a_kv_budget_bounds_it() -> None:
    page = plan(140 * GIB).kv
    five = page.least * 5
    bounded = plan(140 * GIB, replace(PAIR, kv_memory=five))
    assert bounded.kv.sequences == bounded.at_once == 5


def test_the_plan_says_it() -> None:
    held = plan(140 * GIB)
    lines = [" ".join(line.split()) for line in render(held, as_json=False).splitlines()]
    assert "held-out problems at once 64" in lines
    assert json.loads(render(held, as_json=True))["scored_at_once"] == 64
    assert "held-out" not in render(plan(140 * GIB, held_out=0), as_json=False)


def test_how_many_are_held_out_is_known_without_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    known = {"arithmetic": 200, str(file): 0}
    for name, number in known.items():
        config = GrpoConfig(dataset=name)
        assert held_out_of(config, work_of(config).problems) == number
    hub = {"GSM8K": AT_ONCE, "dapo-math": 0}
    assert {name: held_out_of(GrpoConfig(dataset=name), None) for name in hub} == hub


@pytest.mark.parametrize("widen", [True, False])
@pytest.mark.parametrize("rollout", ["flex", "hf", "hf-cb"])
def test_a_run_opens_its_back_end_so(rollout: str, widen: bool, tmp_path: Path) -> None:
    folder = save_tiny("qwen3", tmp_path / "model")
    options = ModelOptions(
        model=str(folder), load_format="dummy", dtype="float32", device="cpu", chat_template="none"
    )
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]
    config = GrpoConfig(
        **STEP | {"max_completion_length": 4, "rollout": rollout, "output_dir": tmp_path / "run"},
        lora_rank=4,
    ).filled("tiny")
    problems, rewards = work_of(config)
    work = Work(replace(problems, rows=rows, held_out=rows[:6]), rewards)
    module: Any = load(options).module
    with ExitStack() as stack:
        ready = assemble(
            loaded(module), work, options, PAIR, config, RolloutOptions(), quiet, stack, widen
        )
        assert ready.engine.max_batch_size == (6 if widen else 2)
        assert ready.rollout is not None
        limit = f"limits: {6 if widen else 2} sequences at a time"
        assert any(line.startswith(limit) for line in ready.rollout.backend.notices)


def test_a_step_holds_what_is_answered_at_once() -> None:
    """Nobody asked for a batch that --prefill-tokens does not hold."""
    narrow = plan(140 * GIB, EngineConfig(max_batch_size=2, prefill_tokens=32), rollout="vllm")
    assert narrow.config["engine"]["max_batch_size"] == 32
