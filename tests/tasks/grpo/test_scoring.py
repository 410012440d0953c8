"""Scoring before and after training: named as what it is, and alike whatever the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo.records.record import GrpoReport
from flexinfer.tasks.grpo.run import GrpoConfig, RolloutOptions, run_grpo
from flexinfer.tasks.grpo.stages import Stages
from tests.support.grpo_runs import few_sums

Told = list[tuple[str, int, int]]
NAME = "scoring held-out arithmetic"


@few_sums()
def run(
    folder: Path,
    rollout: str = "flex",
    widen: bool = True,
    notice: Callable[[str], None] = lambda line: None,
    **values: Any,
) -> tuple[GrpoReport, Told]:
    """Train two steps of four completions; return the report and the progress told."""
    told: Told = []
    config = GrpoConfig(
        rollout=rollout, max_steps=2, num_generations=2, per_device_batch_size=4,
        lora_rank=4, output_dir=folder, **values,
    )  # fmt: skip
    report = run_grpo(
        ModelOptions(model="tiny-gemma4", device="cpu"),
        EngineConfig(max_batch_size=4),
        config,
        RolloutOptions(),
        lambda *stage: told.append(stage),
        notice,
        widen=widen,
    )
    return report, told


@pytest.mark.parametrize("rollout", ["flex", "hf"])
def test_it_is_told_in_problems_under_its_own_name(rollout: str, tmp_path: Path) -> None:
    _, told = run(tmp_path / "run", rollout)
    scored = [(done, total) for stage, done, total in told if stage == NAME]
    assert {total for _, total in scored} == {200}
    counts = [done for done, _ in scored]
    assert 0 <= min(counts) < 100 < max(counts) <= 200
    again = next(i for i in range(1, len(counts)) if counts[i] < counts[i - 1])
    assert counts[:again] == sorted(counts[:again])
    assert counts[again:] == sorted(counts[again:])  # before training, and after
    rolled_out = [total for stage, _, total in told if stage == "generating"]
    assert set(rolled_out) == {4 * 8 if rollout == "flex" else 4}


def test_a_wider_batch_changes_no_answer_and_no_rollout(tmp_path: Path) -> None:
    wide, _ = run(tmp_path / "wide")
    narrow, _ = run(tmp_path / "narrow", widen=False)
    assert wide.config["engine"]["max_batch_size"] == 64
    assert narrow.config["engine"]["max_batch_size"] == 4
    assert wide.accuracy_before == narrow.accuracy_before == 0.645
    assert wide.accuracy_after == narrow.accuracy_after
    assert wide.losses == narrow.losses
    files: Any = [(tmp_path / name / "rollouts.jsonl").read_text() for name in ("wide", "narrow")]
    assert files[0] == files[1]


def test_fewer_are_scored_and_training_is_the_same(tmp_path: Path) -> None:
    every, _ = run(tmp_path / "every")
    assert every.accuracy_before is not None
    for n, wide in ((0, 4), (10, 10)):
        heard: list[str] = []
        report, told = run(tmp_path / str(n), notice=heard.append, eval_size=n)
        assert {total for stage, _, total in told if stage == NAME} == ({n} if n else set())
        assert report.config["engine"]["max_batch_size"] == wide
        assert report.losses == every.losses
        accuracies = (report.accuracy_before, report.accuracy_after)
        assert all(share is not None if n else share is None for share in accuracies)
        said = [line for line in heard if line.startswith("held-out")]
        assert [line.endswith("% of 10 right") for line in said] == [True, True][:n]
        assert not any("--eval-size" in line for line in heard)


def test_they_are_the_first_of_those_that_are_short_enough(tmp_path: Path) -> None:
    """The first 13 are too long: had they been counted, none would be scored."""
    heard: list[str] = []
    limit: dict[str, Any] = {"max_prompt_length": 21, "notice": heard.append}
    _, told = run(tmp_path / "some", eval_size=3, **limit)
    assert {total for stage, _, total in told if stage == NAME} == {3}
    _, told = run(tmp_path / "most", eval_size=200, **limit)
    assert {total for stage, _, total in told if stage == NAME} == {39}
    said = [line for line in heard if "--eval-size" in line]
    assert said == ["--eval-size 200: only 39 held-out problems of arithmetic, all are scored"]


def test_the_name_ends_with_the_work() -> None:
    told: Told = []
    stages = Stages(lambda *stage: told.append(stage))
    with stages.told_as("scoring", 10):
        stages("generating", 5, 100)
        stages("capturing", 0, 0)
        stages("generating", 0, 0)
    with pytest.raises(KeyError), stages.told_as("failing", 1):
        raise KeyError
    stages("generating", 5, 100)
    assert told == [
        ("scoring", 0, 10), ("capturing", 0, 0), ("scoring", 0, 10), ("generating", 5, 100),
    ]  # fmt: skip
