"""The default command learns: a smaller run of it, and the saved adapter answers as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flexinfer.backends.flex import FlexBackend
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.engine import Engine
from flexinfer.tasks.grpo.encode import encoder
from flexinfer.tasks.grpo.evaluate import accuracy
from flexinfer.tasks.grpo.problems.choose import choose_problems
from flexinfer.tasks.grpo.run import GrpoConfig, RolloutOptions, run_grpo
from flexinfer.weights.load import load

STEPS = 40
"""Of 150: the whole run gains more than 15 points of the held-out sums, this one some 6 of them."""


def test_it_gets_better_at_sums_it_never_saw(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "tiny-gemma4", "device": "cpu"}
    engine = EngineConfig(max_batch_size=256)
    config = GrpoConfig(max_steps=STEPS, output_dir=tmp_path / "run", seed=5)
    report = run_grpo(ModelOptions(**options), engine, config, RolloutOptions())
    assert report.accuracy_before == 0.645
    assert report.accuracy_after is not None
    assert report.accuracy_after >= report.accuracy_before + 0.02
    third = STEPS // 3
    first, last = report.rewards[:third], report.rewards[-third:]
    assert sum(last) / third > sum(first) / third + 0.03
    assert max(step.gap_max for step in report.steps) <= 1e-4

    served = load(ModelOptions(**options, adapter=str(tmp_path / "run")))
    rows = choose_problems("arithmetic", seed=0).held_out
    with Engine(served, EngineConfig(max_batch_size=64, max_seq_length=64)) as fresh:
        encode = encoder(served, ModelOptions(**options))
        assert accuracy(FlexBackend(fresh).generate, encode, rows, 8) == report.accuracy_after
