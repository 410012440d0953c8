"""`flexinfer verify-drift` over the embedded model: document, table, verdict as exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.engine import Engine
from flexinfer.tasks.drift import run as task
from flexinfer.tasks.drift.run import DriftConfig

SMALL = (
    *("verify-drift", "--model", "tiny-gemma4", "--device", "cpu", "--max-batch-size", "2"),
    *("--cycles", "1", "--n-prompts", "2", "--max-new-tokens", "4"),
)


def test_one_document_and_exit_0(command: Any) -> None:
    result = command(*SMALL, "--json", "--lora-mode", "runtime", "--seed", "3")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["command"] == "verify-drift"
    assert document["config"]["drift"] == {
        "cycles": 1, "noise_scale": 0.01, "n_prompts": 2, "max_new_tokens": 4, "seed": 3,
    }  # fmt: skip
    assert (document["model_name"], document["lora_mode"]) == ("tiny-gemma4", "runtime")
    assert all(check["passed"] for check in document["checks"])
    assert "--adapter not given: random:16" in result.stderr
    assert "device: cpu (as asked)\n" in result.stderr


def test_a_failed_check_is_exit_1(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "refresh", lambda self, source=None: None)
    result = command(*SMALL)
    assert result.exit_code == 1
    rows = {w[0]: w[1] for w in map(str.split, result.stdout.splitlines()) if len(w) == 4}
    assert rows["base_bit_identical"] == "ok"
    assert rows["no_stale_cache"] == rows["adapter_effect"] == "FAIL"
    assert "verdict: drift (" in result.stdout


def test_quiet_says_nothing_beside_the_table(command: Any) -> None:
    result = command(*SMALL, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("verdict: no drift\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cycles", "0"], "--cycles is 0"),
        (["--noise-scale", "0"], "--noise-scale is 0.0"),
        (["--noise-scale", "1e300"], "--noise-scale is 1e+300; allowed: above 0, at most 1.0"),
        (["--cycles", "100000000"], "--cycles is 100000000; allowed: at most 10000"),
        (["--n-prompts", "100000000"], "--n-prompts is 100000000; allowed: at most 1024"),
        (["--noise-scale", "much"], "--noise-scale is"),
        (["--adapter", "no-such-folder"], "no-such-folder"),
        (["--max-batch-size", "1,2"], "is a list"),
    ],
)
def test_wrong_usage_is_exit_2(command: Any, words: list[str], said: str) -> None:
    result = command(*SMALL, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_options_reach_the_task(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def run(options: ModelOptions, engine: EngineConfig, config: DriftConfig, *rest: Any) -> Any:
        asked[:] = [options, engine, config]
        raise KeyboardInterrupt

    monkeypatch.setattr(task, "run_drift", run)
    words = ("--adapter", "random:4", "--noise-scale", "0.5", "--cycles", "20", "--dtype")
    assert command("verify-drift", "-m", "m", *words, "bfloat16").exit_code == 130
    assert asked == [
        ModelOptions(model="m", adapter="random:4", dtype="bfloat16"),
        EngineConfig(),
        DriftConfig(cycles=20, noise_scale=0.5),
    ]
