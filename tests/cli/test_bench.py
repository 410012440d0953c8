"""`flexinfer bench`: options reach the task, figures go to stdout, verdicts become exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.bench.run import BenchConfig


def test_the_seed_workload_is_the_default(command: Any, asked: list[Any]) -> None:
    result = command("bench", "--model", "m")
    assert result.exit_code == 0
    assert "123.4" in result.stdout
    assert result.stderr == "attention: fake\n"
    assert asked[:3] == [
        ModelOptions(model="m"),
        EngineConfig(),
        BenchConfig(n_prompts=64, n_rounds=5, max_new_tokens=512, batch_sizes=(64,)),
    ]


def test_a_batch_size_that_is_not_given_is_the_workloads_and_said(
    command: Any, asked: list[Any]
) -> None:
    result = command("bench", "-m", "m", "--n-prompts", "300")
    assert (asked[1].max_batch_size, asked[2].batch_sizes) == (256, (256,))
    assert "--max-batch-size not given: 256, for 300 sequences (256 at most)\n" in result.stderr
    result = command("bench", "-m", "m", "--n-prompts", "8", "--n-samples", "2")
    assert (asked[1].max_batch_size, asked[2].n_prompts) == (16, 8)
    assert "--max-batch-size not given: 16, for 16 sequences\n" in result.stderr
    command("bench", "-m", "m", "--n-prompts", "8", "--max-batch-size", "64")
    assert (asked[1].max_batch_size, asked[2].n_prompts) == (64, 8)


def test_prompts_that_are_not_given_follow_a_sweep(command: Any, asked: list[Any]) -> None:
    command("bench", "-m", "m", "--max-batch-size", "1,32")
    assert (asked[2].n_prompts, asked[2].prompts_at(32)) == (None, 32)


def test_help_says_what_follows_what(command: Any) -> None:
    words = " ".join(command("bench", "--help").stdout.split())
    assert "Prompts a round (default: 64; of a list of batch sizes, as many as each)." in words
    assert "Sequences at once (default: 64; bench: a round's, up to 256; 1,8,32 sweeps)." in words


def test_options_reach_the_task(command: Any, asked: list[Any], tmp_path: Path) -> None:
    path = str(tmp_path / "base.json")
    words = "--n-prompts 2 --n-rounds 1 --max-new-tokens 8 --prompt-length 4:6 --no-ignore-eos "
    words += "--n-samples 8 --no-gate "
    words += "--temperature 0 --max-batch-size 1,4 --kv-memory 1MiB --seed 3 --fail-below 5"
    assert command("bench", "-m", "m", *words.split(), "--baseline", path).exit_code == 0
    assert asked[0] == ModelOptions(model="m", seed=3)
    assert asked[1] == EngineConfig(max_batch_size=1, kv_memory=2**20, seed=3)
    assert asked[2] == BenchConfig(
        n_prompts=2,
        n_rounds=1,
        max_new_tokens=8,
        prompt_length="4:6",
        ignore_eos=False,
        n_samples=8,
        gate=False,
        temperature=0.0,
        batch_sizes=(1, 4),
        baseline=path,
        fail_below=5.0,
        seed=3,
    )


@pytest.mark.parametrize("name", ["tune", "profile"])
def test_more_than_rounds_is_asked_for(command: Any, asked: list[Any], name: str) -> None:
    for given in (False, True):
        assert command("bench", "-m", "m", *[f"--{name}"] * given).exit_code == 0
        assert vars(asked[2])[name] == given


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"], ["--json", "--format=json"]])
def test_json_is_one_document(command: Any, asked: list[Any], words: list[str]) -> None:
    document = json.loads(command("bench", "-m", "m", *words).stdout)
    assert document["command"] == "bench"
    assert document["results"][0]["decode_tps_median"] == 123.4


def test_the_outcome_of_the_gate_is_said_once(command: Any, asked: list[Any]) -> None:
    result = command("bench", "-m", "m")
    assert (result.stdout + result.stderr).count("output gate: 4 of 4") == 1


@pytest.mark.parametrize("words", [[], ["--debug"]])
def test_debug_reaches_the_lanes(command: Any, asked: list[Any], words: list[str]) -> None:
    assert command("bench", "-m", "m", *words).exit_code == 0
    assert asked[3] == bool(words)


@pytest.mark.parametrize(("model", "code"), [("bad", 1), ("slow", 130), ("hung up", 143)])
def test_the_verdict_is_the_exit_code(
    command: Any, asked: list[Any], model: str, code: int
) -> None:
    result = command("bench", "-m", model)
    assert result.exit_code == code
    assert "123.4" in result.stdout
    said = "error: 1 of 1 rows failed: flex batch 4\n"
    assert (said in result.stderr) == (model == "bad")


@pytest.mark.parametrize("form", ["table", "md", "json", "csv"])
def test_why_a_row_failed_is_said_in_words_once(command: Any, asked: list[Any], form: str) -> None:
    """In data, which nobody reads, it is a field besides."""
    result = command("bench", "-m", "bad", "--format", form)
    words = form in ("table", "md")
    assert result.stdout.count("it broke") == 1
    assert ("error: flex batch 4: it broke\n" in result.stderr) == (not words)
    assert result.stderr.count("it broke") == (not words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--backend", "vllm"], 3),
        (["--backend", "flex", "--backend", "flex"], 2),
        (["--report", "x.pdf"], 2),
        (["--json", "--format", "csv"], 2),
        (["--json", "--format", "table"], 2),
        (["--fail-below", "5"], 2),
        (["--n-prompts", "0"], 2),
        (["--n-samples", "0"], 2),
        (["--max-new-tokens", "0"], 2),
        (["--max-batch-size", "1,x"], 2),
        (["--max-new-tokens", "8,x"], 2),
        (["--prompt-length", "8,8"], 2),
        (["--weights", "8bit"], 2),
    ],
)
def test_what_cannot_be_measured(
    command: Any, asked: list[Any], words: list[str], code: int
) -> None:
    result = command("bench", "-m", "m", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: --")
    assert not asked


def test_sweeps_reach_the_task(command: Any, asked: list[Any]) -> None:
    words = "--prompt-length 64:256,1024 --max-new-tokens 128,4k --weights plain,4bit+runtime"
    assert command("bench", "-m", "m", "--adapter", "random:8", *words.split()).exit_code == 0
    config = asked[2]
    assert (config.prompt_length, config.new_tokens) == ("64:256,1024", (128, 4000))
    assert (config.max_new_tokens, config.weights) == (128, ("plain", "4bit+runtime"))
