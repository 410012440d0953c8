"""The document of a run: every promised key, whole after every step, and read back on resume."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields
from pathlib import Path

import pytest

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.grpo.records.record import StepRecord
from flexinfer.tasks.grpo.records.stats_file import check_stats, read_earlier, write_stats
from tests.support.steps import made_report, made_step

PROMISED = {
    "backend",
    "model_name",
    "train_wall_s",
    "peak_memory_gb",
    "step_wall_s",
    "losses",
    "rewards",
    "max_prompt_length",
    "max_completion_length",
    "num_generations",
    "max_steps",
}


def test_the_document_keeps_every_promise() -> None:
    steps = (made_step(1), made_step(2, loss=-1.0, step_s=7.0, kl=0.5))
    document = json.loads(made_report(*steps, accuracy_before=0.5).to_json())
    assert set(document) >= PROMISED
    assert list(document)[:5] == [
        "schema_version", "command", "started_at", "config", "environment",
    ]  # fmt: skip
    assert document["command"] == "train-grpo"
    assert document["step_wall_s"] == [5.78, 7.0]
    assert document["losses"] == [0.0625, -1.0]
    assert document["rewards"] == [0.501, 0.502]
    assert document["accuracy_before"] == 0.5
    assert set(document["steps"][0]) == {field.name for field in fields(StepRecord)}
    assert document["steps"][1]["kl"] == 0.5
    assert {"gap", "train_s", "policy_version"} <= set(document["definitions"])


def test_what_is_no_number_does_not_lose_the_rest() -> None:
    text = made_report(made_step(1, loss=math.nan, gap_max=math.inf)).to_json()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert document["losses"] == [None]
    assert document["steps"][0]["gap_max"] is None
    assert document["steps"][0]["gap_mean"] == 1.5e-6


def test_interrupted_is_an_exit_code() -> None:
    assert made_report().exit_code == 0
    assert made_report(interrupted=True).exit_code == 130


def test_a_failed_write_keeps_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "stats.json"
    write_stats(path, made_report(made_step(1)))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteFailed, match=r"--stats-path .*No space left"):
        write_stats(path, made_report(made_step(1), made_step(2)))
    assert len(json.loads(path.read_text())["steps"]) == 1
    with pytest.raises(WriteFailed, match="--stats-path"):
        check_stats(tmp_path)


def test_steps_are_read_back_up_to_the_one_resumed_from(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    steps = tuple(made_step(n, kl=0.5, loss=math.nan if n == 2 else 0.25) for n in range(1, 5))
    write_stats(path, made_report(*steps))
    found, _ = read_earlier(path, 3)
    assert [step.step for step in found] == [1, 2, 3]
    assert found[0] == steps[0]
    assert math.isnan(found[1].loss)
    assert read_earlier(tmp_path / "none.json", 3) == ((), None)
    again = made_report(*found).to_json()
    assert json.loads(again)["steps"] == json.loads(path.read_text())["steps"][:3]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"command": "bench", "steps": []}', '{"command": "train-grpo"}',
             '{"command": "train-grpo", "steps": [{"step": 1}]}'],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stats.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"--stats-path .* holds no steps of train-grpo") as caught:
        read_earlier(path, 1)
    assert caught.value.hint


def test_a_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    write_stats(path, made_report(made_step(1)))
    document = json.loads(path.read_text())
    document["steps"][0]["step"] = "x"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="holds no steps of train-grpo: step of a step is 'x'"):
        read_earlier(path, 1)
