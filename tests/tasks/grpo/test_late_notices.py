"""What a back end learns by running is told once, as soon as it is known, and is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.run import RolloutOptions, run_grpo
from tests.support.engines import toy_tokenizer
from tests.support.grpo_runs import few_sums
from tests.support.tiny import save_tiny

LATE = "continuous batching ran with "
SCORED = "held-out arithmetic before training"
STEP = "step"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a model that continuous batching serves."""
    folder = save_tiny("qwen3", tmp_path_factory.mktemp("model"))
    toy_tokenizer().save_pretrained(folder)
    return str(folder)


@few_sums()
def told(model: str, folder: Path, on_line: Callable[[str], None], **values: Any) -> None:
    """Train over hf-cb; `on_line` hears notices and `STEP` after each step."""
    short: dict[str, Any] = {
        "rollout": "hf-cb",
        "max_steps": 2,
        "num_generations": 2,
        "per_device_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 3,
        "lora_rank": 2,
        "eval_size": 2,
    }
    options = ModelOptions(model=model, device="cpu", dtype="float32", chat_template="none")
    config = GrpoConfig(**short | values, output_dir=folder, report=folder / "page.html")
    run_grpo(
        options,
        EngineConfig(max_batch_size=4),
        config,
        RolloutOptions(),
        notice=on_line,
        on_step=lambda record: on_line(STEP),
    )


def stats(folder: Path) -> dict[str, Any]:
    """Return the document as it is on disk."""
    document: dict[str, Any] = json.loads((folder / "stats.json").read_text())
    return document


def late(lines: list[str]) -> list[str]:
    """Return the lines that no back end can say before it ran."""
    return [line for line in lines if line.startswith(LATE)]


def test_scoring_tells_it_and_a_resumed_run_once_more(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for max_steps in (1, 2):
        heard: list[str] = []
        told(model, folder, heard.append, max_steps=max_steps, resume=max_steps == 2)
        (line,) = late(heard)
        assert heard[heard.index(line) + 1].startswith(SCORED)
        assert heard.count(STEP) == 1
        assert late(stats(folder)["notices"]) == [line]
        assert line in (folder / "page.html").read_text()


def test_without_scoring_the_first_step_tells_it_and_writes_it(model: str, tmp_path: Path) -> None:
    folder, heard, written = tmp_path / "run", list[str](), list[list[str]]()

    def hearing(line: str) -> None:
        heard.append(line)
        if line == STEP:
            written.append(late(stats(folder)["notices"]))

    told(model, folder, hearing, eval_size=0)
    (line,) = late(heard)
    assert heard[heard.index(line) :] == [line, STEP, STEP]
    assert written == [[line], [line]]


def test_an_interrupted_run_has_written_it(model: str, tmp_path: Path) -> None:
    """Before its first step: nothing else has been written by then."""
    folder, heard = tmp_path / "run", list[str]()

    def interrupting(line: str) -> None:
        heard.append(line)
        if line.startswith(SCORED):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        told(model, folder, interrupting)
    document, (line,) = stats(folder), late(heard)
    assert (document["interrupted"], document["steps"]) == (True, [])
    assert late(document["notices"]) == [line]
    assert line in (folder / "page.html").read_text()


def test_another_process_of_the_run_says_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    heard: list[str] = []
    told(model, tmp_path / "run", heard.append, max_steps=1)
    assert heard == []
    assert not (tmp_path / "run" / "stats.json").exists()
