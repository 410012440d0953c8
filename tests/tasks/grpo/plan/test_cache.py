"""The KV cache of a plan: beside the trainer unless the engine sleeps; its rows add up."""

from __future__ import annotations

import pytest

from flexinfer.config import EngineConfig, ModelOptions, parse_size
from flexinfer.core.sizes import human
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan import beside
from flexinfer.tasks.grpo.plan.fit import needed
from flexinfer.tasks.grpo.plan.parts import VLLM_SPARE
from flexinfer.tasks.grpo.plan.run import plan_run, render
from tests.tasks.grpo.plan.test_plan import GIB, LARGE, MATH, size


def test_kv_that_is_kept_lies_beside_the_trainer() -> None:
    """Without --sleep: an engine takes what is free before the trainer has taken its part."""
    asleep = plan_run(LARGE, EngineConfig(), GrpoConfig(**MATH), available=80 * GIB)
    awake = GrpoConfig(**MATH | {"sleep": False})
    kept = plan_run(LARGE, EngineConfig(), awake, available=80 * GIB)
    rollout, training = (
        sum(p.n_bytes for p in asleep.parts if p.phase == phase and p.name != "KV cache")
        for phase in ("rollout", "training")
    )
    more = min(kept.kv.wanted, max(rollout, training) - rollout)
    assert kept.wanted == asleep.wanted - max(rollout + kept.kv.wanted, training) + (
        kept.kv.wanted + max(rollout, training)
    )
    assert more > GIB
    between = kept.wanted - more // 2
    assert plan_run(LARGE, EngineConfig(), GrpoConfig(**MATH), available=between).fits
    mine = EngineConfig(kv_memory=kept.kv.wanted)
    short = plan_run(LARGE, mine, awake, available=between)
    assert not short.fits
    assert "with KV for all 64 sequences" in short.verdict
    assert any("--sleep" in hint for hint in short.hints)
    (told,) = (hint for hint in short.hints if hint.endswith(" would fit"))
    granted = EngineConfig(kv_memory=parse_size(told.split()[1], "--kv-memory"))
    assert plan_run(LARGE, granted, awake, available=between).fits
    more_than_told = EngineConfig(kv_memory=(granted.kv_memory or 0) + 2**20 + kept.kv.page_bytes)
    assert not plan_run(LARGE, more_than_told, awake, available=between).fits


def test_kv_that_nobody_chose_leaves_room_for_training() -> None:
    """Before it is taken: what fits with some cache fits without --kv-memory."""
    awake = GrpoConfig(**MATH | {"sleep": False})
    kept = plan_run(LARGE, EngineConfig(), awake, available=80 * GIB)
    fixed = kept.wanted - kept.kv.wanted
    assert kept.config["engine"]["kv_memory"] is None
    for share in (0.1, 0.5, 0.9):
        available = int(fixed + share * kept.kv.wanted)
        some = plan_run(LARGE, EngineConfig(), awake, available=available)
        assert some.fits
        assert 1 <= some.at_once < 64
        assert size(some, "KV cache") == some.granted == some.config["engine"]["kv_memory"]
        assert needed(some.parts[:-1], some.parts[-1]) <= available
        assert any(line.startswith("KV cache: ") for line in some.notices)
    one = fixed + kept.kv.least
    assert plan_run(LARGE, EngineConfig(), awake, available=one).at_once == 1
    none = plan_run(LARGE, EngineConfig(), awake, available=one - 1)
    assert not none.fits
    assert "even with KV for 1 of 64" in none.verdict
    assert none.config["engine"]["kv_memory"] is None


@pytest.mark.parametrize("available", [8, 16, 22, 80])
@pytest.mark.parametrize("sleep", [False, True])
def test_the_rows_add_up_to_what_is_needed(available: int, sleep: bool) -> None:
    config = GrpoConfig(**MATH | {"sleep": sleep})
    plan = plan_run(LARGE, EngineConfig(), config, available=available * GIB)
    most = max(
        sum(part.n_bytes for part in plan.parts if part.phase in ("always", phase))
        for phase in ("rollout", "training")
    )
    assert f"needs {human(most)}, " in plan.verdict
    sums = [line for line in render(plan, as_json=False).splitlines() if line.startswith("sum ")]
    assert [line.split()[1:4] for line in sums] == [
        ["always", "+", "rollout"], ["always", "+", "training"],
    ]  # fmt: skip
    assert any(line.endswith(human(most)) for line in sums)


def test_a_run_gives_its_engine_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are loaded by then, which is all that differs."""
    options = ModelOptions(model="tiny-gemma4", device="cpu")
    config = GrpoConfig().filled("tiny-gemma4")
    engine = EngineConfig(max_batch_size=256, max_seq_length=30)
    longest_prompt = 30 - 8
    whole = plan_run(options, engine, config, longest_prompt, available=80 * GIB)
    for short in (0, whole.kv.wanted // 2, whole.kv.wanted):
        free = whole.wanted - short
        plan = plan_run(options, engine, config, longest_prompt, available=free)
        there = free - size(whole, "weights")
        monkeypatch.setattr(beside, "available_bytes", lambda device, there=there: there)
        opened, _, lines = beside.fitted_beside(options, engine, config, 0, 1)
        assert opened.kv_memory == plan.config["engine"]["kv_memory"]
        assert (opened.kv_memory is not None) == (0 < short < whole.kv.wanted) == bool(lines)
        assert set(lines) <= set(plan.notices)


def test_vllm_is_told_what_is_planned() -> None:
    """Of itself it would take nearly all there is."""
    values = MATH | {"sleep": False, "rollout": "vllm"}
    ample = plan_run(LARGE, EngineConfig(), GrpoConfig(**values), available=800 * GIB)
    told = ample.config["engine"]["kv_memory"]
    assert told == ample.kv.wanted == ample.granted == size(ample, "KV cache")
    assert ample.kv.spare * ample.kv.page == VLLM_SPARE
    for available, fits in ((ample.wanted, True), (ample.wanted - 2 * GIB, True), (9 * GIB, False)):
        tight = plan_run(LARGE, EngineConfig(), GrpoConfig(**values), available=available)
        told = tight.config["engine"]["kv_memory"]
        assert tight.fits == fits
        assert tight.kv.least <= told <= tight.kv.wanted
        if fits:
            assert needed(tight.parts[:-1], tight.parts[-1]) <= available


def test_a_plan_of_vllm_hints_at_nothing_that_it_refuses() -> None:
    values = MATH | {"sleep": False, "rollout": "vllm"}
    short = plan_run(LARGE, EngineConfig(), GrpoConfig(**values), available=9 * GIB)
    assert short.hints
    assert not [hint for hint in short.hints if "--sleep" in hint or "--load-in-4bit" in hint]
