"""A lost connection ends a command as SIGTERM does: what is finished is kept, nobody watching."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from pathlib import Path
from shlex import join

from flexinfer.tasks.grpo.saved.checkpoints import newest
from tests.support.processes import start

FLEXINFER = (sys.executable, "-m", "flexinfer")
TRAIN = (
    *(*FLEXINFER, "train-grpo", "--device", "cpu", "--max-steps", "100000", "--eval-size", "0"),
    *("--lora-rank", "4", "--num-generations", "4", "--per-device-batch-size", "8"),
)
BENCH = (
    *(*FLEXINFER, "bench", "--model", "tiny-gemma4", "--device", "cpu", "--no-gate"),
    *("--n-prompts", "2", "--n-rounds", "1", "--prompt-length", "8", "--max-new-tokens"),
)


def left_by(folder: Path) -> int:
    """Return the steps of the checkpoint and of the statistics in a folder, which are the same."""
    last, figures = newest(folder), json.loads((folder / "stats.json").read_text())
    assert last is not None
    assert figures["interrupted"]
    assert last.name == f"checkpoint-{len(figures['steps'])}"
    return len(figures["steps"])


def test_training_is_saved(tmp_path: Path) -> None:
    process = start([*TRAIN, "--output-dir", str(tmp_path / "run")])
    assert process.stderr is not None
    while not process.stderr.readline().startswith("step 1/"):
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    stdout, rest = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (143, "")
    step = left_by(tmp_path / "run")
    said = f"terminated (step {step} is saved; --resume goes on from there)"
    assert rest.splitlines()[-1] == said


def test_training_is_saved_where_the_terminal_is_gone(tmp_path: Path) -> None:
    """Nothing can be drawn or said any more."""
    leader, follower = pty.openpty()
    command = join([*TRAIN, "--output-dir", str(tmp_path / "run")])
    terminal = os.ttyname(follower)
    words = ["sh", "-c", f"exec {command} < {terminal} > {terminal} 2>&1"]
    process = start(words, start_new_session=True, variables={"TERM": "xterm"})
    shown = b""
    while b"1/100000" not in shown:
        shown += os.read(leader, 65536)
    os.close(follower)
    os.close(leader)
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert left_by(tmp_path / "run")


def test_measured_rows_are_told(tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    process = start([*BENCH, "8,4000", "--stats-path", str(stats), "--json"])
    assert process.stderr is not None
    while "generating: " not in process.stderr.readline():  # of the second row: the first is short
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == 143
    assert json.loads(stdout) == json.loads(stats.read_text())
    assert len(json.loads(stdout)["results"]) == 1
