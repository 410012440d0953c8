"""Two processes train one adapter on a CPU: both roll out, one of them speaks and writes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flexinfer.tasks.grpo.processes import own_seed

RUN = (
    *("train-grpo", "--device", "cpu", "--lora-rank", "4", "--max-completion-length", "4"),
    *("--num-generations", "2", "--per-device-batch-size", "4", "--temperature", "5", "--json"),
    *("--learning-rate", "1e-3", "--output-dir", "run"),
)


def launched(folder: Path, *words: str) -> list[tuple[int, str, str]]:
    """Run a command as a launcher does; return code, stdout and stderr of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "flexinfer", *words],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, out, err) for p, (out, err) in zip(started, said, strict=True)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    """Return the folder of a run of two processes, and what they said."""
    folder = tmp_path_factory.mktemp("processes")
    return folder / "run", launched(folder, *RUN, "--max-steps", "2")


def test_one_speaks_and_writes_what_both_made(trained: Any) -> None:
    run, ((code, document, _), (other_code, nothing, other_said)) = trained
    assert (code, other_code, nothing) == (0, 0, ""), other_said
    assert "step 1" not in other_said
    steps = json.loads(document)["steps"]
    lines = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * 4
    assert [step["tokens"] for step in steps] == [
        sum(len(line["token_ids"]) for line in lines if line["step"] == step) for step in (1, 2)
    ]
    assert all(step["gap_max"] < 1e-4 for step in steps)
    assert any(line["advantage"] for line in lines)
    assert (run / "adapter_model.safetensors").is_file()


def test_as_many_go_on_with_it(trained: Any) -> None:
    run, _ = trained
    for code, _, said in launched(run.parent, *RUN, "--max-steps", "3", "--resume"):
        assert code == 0, said
    assert len((run / "rollouts.jsonl").read_text().splitlines()) == 3 * 2 * 4


def test_processes_draw_from_seeds_of_their_own() -> None:
    seeds = [own_seed(7, process) for process in range(4)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4


def test_a_plan_is_of_all_processes_and_said_once(tmp_path: Path) -> None:
    planned = launched(tmp_path, *RUN, "--max-steps", "2", "--dry-run", "--quiet")
    (code, document, said), (other_code, nothing, other_said) = planned
    assert (code, other_code, nothing, said, other_said) == (0, 0, "", "", "")
    batch = json.loads(document)["batch"]
    assert (batch["processes"], batch["completions_per_step"]) == (2, 2 * 4)


@pytest.mark.parametrize(("size", "code"), [("two", 2), ("2", 3)])
def test_what_no_launcher_has_set_is_told(size: str, code: int, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "flexinfer", *RUN, "--quiet"],
        env=os.environ | {"WORLD_SIZE": size},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "internal error" not in ended.stderr
    assert "WORLD_SIZE" in ended.stderr
    assert not (tmp_path / "run").exists()
