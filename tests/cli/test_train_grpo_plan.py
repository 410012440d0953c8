"""`flexinfer train-grpo --dry-run`: the plan, and that it refuses what a run would."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flexinfer.cli.main import app
from flexinfer.tasks.grpo.saved.folder import made
from tests.cli.test_train_grpo import ONE_STEP, SHORT
from tests.support.grpo_runs import few_sums


@pytest.fixture(autouse=True)
def _few_sums() -> Iterator[None]:
    with few_sums():
        yield


@contextmanager
def looked_at(folder: Path) -> Iterator[None]:
    """Hold what another process holds of a folder while it looks whether a run writes into it."""
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    yield
    os.close(handle)


def test_a_plan_that_does_not_fit_is_exit_4(command: Any) -> None:
    result = command(
        "train-grpo", "--dry-run", "-m", "qwen3-4b", "--load-format", "dummy", "--device", "cpu",
        "--per-device-batch-size", "4096", "--gradient-accumulation-steps", "1",
        "--num-generations", "16",
    )  # fmt: skip
    assert result.exit_code == 4
    assert "does not fit" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_gpu_that_is_not_here_is_planned_for_and_not_run_on(command: Any, tmp_path: Path) -> None:
    words = ("train-grpo", "--device", "cuda", "--output-dir", str(tmp_path / "run"), "--quiet")
    plan = command(*words, "--dry-run", "--dtype", "bfloat16")
    assert (plan.exit_code, plan.stderr) == (0, "")
    assert plan.stdout.startswith("tiny-gemma4, bfloat16 on cuda\n")
    last = plan.stdout.splitlines()[-1]
    assert last.startswith("needs ")
    assert last.endswith("tokens; there is no CUDA device here to hold it against")
    run = command(*words)
    assert (run.exit_code, run.stdout) == (3, "")
    assert "there is no usable CUDA device" in run.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("words", "at_once"), [((), 64), (("--max-batch-size", "8"), 8)])
def test_held_out_problems_have_a_batch_of_their_own(
    words: tuple[str, ...], at_once: int, command: Any
) -> None:
    """However small a step is; a size that was given is kept."""
    result = command(
        "train-grpo", "--dry-run", "--json", "--device", "cpu", "--num-generations", "2",
        "--per-device-batch-size", "2", "--gradient-accumulation-steps", "1", *words,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["batch"]["completions_per_step"] == 2
    assert (plan["scored_at_once"], plan["kv"]["sequences"]) == (at_once, at_once)


@pytest.mark.parametrize(
    ("held", "words", "at_once", "said"),
    [
        ("eval_size: 5\n", (), 5, ""),
        ("eval-size: 0\n", (), 0, ""),
        ("eval-size: 0\n", ("--eval-size", "300"), 64, "only 200 held-out problems of arithmetic"),
        ("dataset: dapo-math\n", ("--eval-size", "3"), 0, "no held-out problems of dapo-math"),
        ("dataset: gsm8k\n", ("--eval-size", "7"), 7, ""),
    ],
)
def test_a_plan_counts_the_problems_that_are_scored(
    held: str, words: tuple[str, ...], at_once: int, said: str, command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(held + "device: cpu\nnum_generations: 2\nper_device_batch_size: 2\n")
    one_pass = ("--gradient-accumulation-steps", "1", "--max-completion-length", "8")
    words = ("--config", str(file), *one_pass, *words)
    result = command("train-grpo", "--dry-run", "--json", *words)
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["scored_at_once"], plan["kv"]["sequences"]) == (at_once, max(2, at_once))
    lines = [line for line in plan["notices"] if "--eval-size" in line]
    assert len(lines) == bool(said)
    assert all(said in line and line in result.stderr for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        *(("--rollout", "flux"), ("--optim", "nosuch"), ("--dataset", "nosuch.jsonl")),
        *(("--reward", "nosuch"), ("--attn-impl", "sdpa"), ("--reward", "nosuch:nosuch")),
    ],
)
def test_a_plan_of_what_cannot_be_is_refused(words: tuple[str, ...], command: Any) -> None:
    result = command("train-grpo", "--dry-run", "--quiet", *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert words[0] in result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one step."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with few_sums():
        assert CliRunner().invoke(app, [*ONE_STEP, "--output-dir", str(folder)]).exit_code == 0
    return folder


def refused_alike(command: Any, words: Sequence[str], code: int = 2) -> str:
    """Return what the run says, and its plan, too, with the same exit code and no data."""
    run, plan = command(*ONE_STEP, *words), command(*ONE_STEP, "--dry-run", *words)
    assert (run.exit_code, run.stderr, run.stdout) == (plan.exit_code, plan.stderr, plan.stdout)
    assert (run.exit_code, run.stdout) == (code, "")
    said: str = run.stderr
    return said


def test_a_plan_counts_the_rows_of_a_file(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, words = tmp_path / "rows.jsonl", ("--output-dir", str(tmp_path / "run"))
    rows = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(2)]
    words = ("--dataset", str(data), "--gradient-accumulation-steps", "1", *words)
    data.write_text(json.dumps(rows[0]) + "\n")
    said = refused_alike(command, words)
    assert said.startswith(f"error: --dataset {data}: 1 prompts, while a step takes 2\n")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = command(*SHORT, "--dry-run", *words)
    assert plan.exit_code == 0, plan.stderr
    assert f"problems: {data}, 2 rows" in plan.stderr
    with monkeypatch.context() as two:
        two.setenv("WORLD_SIZE", "2")
        plan = command(*SHORT, "--dry-run", *words)
        assert plan.exit_code == 2
        assert "2 prompts, while a step takes 4" in plan.stderr
    data.write_text("".join(json.dumps(row | {"x": row["prompt"]}) + "\n" for row in rows[:1]))
    with data.open("a") as more:
        more.write('{"prompt": "a", "answer": 1, "x": 1}\n')
    assert "a column holds what a table cannot" in refused_alike(command, words)
    data.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert "--reward exact-answer needs answers" in refused_alike(command, words)


def test_a_plan_looks_into_the_output_folder(command: Any, trained: Path, tmp_path: Path) -> None:
    words, empty = ("--output-dir", str(trained)), ("--output-dir", str(tmp_path / "empty"))
    assert "holds a run already" in refused_alike(command, words)
    assert "holds no checkpoint" in refused_alike(command, (*empty, "--resume"))
    one = str(tmp_path / "page.html")
    one_file = ("--report", one, "--stats-path", one)
    assert "are one file" in refused_alike(command, (*empty, *one_file))
    on = (*words, "--resume")
    assert "has taken 1 steps already" in refused_alike(command, on)
    assert "made with --lora-rank 4, not 8" in refused_alike(command, (*on, "--lora-rank", "8"))
    plan = command(*ONE_STEP, "--dry-run", *on, "--max-steps", "2")
    assert plan.exit_code == 0, plan.stderr
    with looked_at(trained):
        assert command(*ONE_STEP, "--dry-run", *on, "--max-steps", "2").exit_code == 0
    with made(trained):
        assert "another run is writing into it" in refused_alike(command, (*on, "--max-steps", "2"))
    hub = command(*ONE_STEP, "--dry-run", *on, "--dataset", "gsm8k")
    assert hub.exit_code == 2
    assert "made with --dataset arithmetic, not gsm8k" in hub.stderr


def test_a_plan_of_the_hubs_problems_goes_on_without_them(command: Any, trained: Path) -> None:
    settings = trained / "train_grpo.json"
    kept = settings.read_text()
    settings.write_text(kept.replace('"dataset": "arithmetic"', '"dataset": "gsm8k"'))
    words = ("--dataset", "gsm8k", "--output-dir", str(trained), "--resume", "--max-steps", "2")
    plan = command(
        *ONE_STEP, "--dry-run", *words, "--learning-rate", "2.5e-3", "--warmup-steps", "5",
        "--no-gradient-checkpointing", "--gradient-accumulation-steps", "1",
        "--max-completion-length", "8",
    )  # fmt: skip
    settings.write_text(kept)
    assert plan.exit_code == 0, plan.stderr


def test_what_a_reward_prints_is_no_plan(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_reward.py").write_text(
        "print('hello')\ndef loud(completions, **columns):\n    return [0.0 for _ in completions]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--reward", "loud_reward:loud", "--output-dir", str(tmp_path / "run"))
    plan = command(*SHORT, "--dry-run", "--json", *words)
    assert json.loads(plan.stdout)["dry_run"]
    assert "hello" in plan.stderr
