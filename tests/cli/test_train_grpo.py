"""`flexinfer train-grpo` over the embedded model: document, files, plan, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flexinfer.tasks.grpo import setup
from tests.support.grpo_runs import few_sums

SHORT = (
    *("train-grpo", "--device", "cpu", "--max-steps", "2", "--lora-rank", "4"),
    *("--num-generations", "4", "--per-device-batch-size", "8", "--max-batch-size", "8"),
)
ONE_STEP = (*SHORT, "--max-steps", "1", "--eval-size", "0", "--quiet")


@pytest.fixture(autouse=True)
def _few_sums() -> Iterator[None]:
    with few_sums():
        yield


def test_one_document_and_every_file(command: Any, tmp_path: Path) -> None:
    run, stats, page = tmp_path / "run", tmp_path / "stats.json", tmp_path / "page.html"
    result = command(
        *SHORT, "--json", "--output-dir", str(run), "--stats-path", str(stats),
        "--report", str(page), "--seed", "5",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document == json.loads(stats.read_text())
    assert document["command"] == "train-grpo"
    assert (document["backend"], document["model_name"]) == ("flex", "tiny-gemma4")
    assert document["config"]["grpo"]["seed"] == 5
    assert document["max_steps"] == len(document["steps"]) == len(document["losses"]) == 2
    assert [step["policy_version"] for step in document["steps"]] == [0, 1]
    assert all(step["gap_max"] < 1e-4 for step in document["steps"])
    assert document["accuracy_before"] == 0.645
    assert "--model not given: tiny-gemma4" in result.stderr
    assert "held-out arithmetic before training: 64.5% of 200 right" in result.stderr
    assert "step 2/2: reward" in result.stderr
    assert len((run / "rollouts.jsonl").read_text().splitlines()) == 16
    assert json.loads((run / "adapter_config.json").read_text())["base_model_name_or_path"] == (
        "tiny-gemma4"
    )
    assert page.read_text().startswith("<!")


def test_lines_for_people_and_the_adapter_served(command: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = command(*SHORT, "--quiet", "--output-dir", str(run))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "held-out answers right: 64.5% -> " in result.stdout
    assert result.stdout.endswith(f"adapter: {run}\n")
    asked = ("generate", "--model", "tiny-gemma4", "--device", "cpu", "--adapter", str(run))
    served = command(*asked, "--format", "jsonl", "12+30=")
    assert served.exit_code == 0, served.stderr
    assert json.loads(served.stdout)["adapter_sha"]


@pytest.mark.parametrize("mode", ["runtime", "merged"])
def test_the_adapter_runs_as_lora_mode_says(mode: str, command: Any, tmp_path: Path) -> None:
    result = command(*SHORT, "--output-dir", str(tmp_path / "run"), "--lora-mode", mode)
    assert result.exit_code == 0, result.stderr
    assert f"LoRA: {mode}" in result.stderr


def test_options_come_from_a_file_and_words_overrule_them(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("reward: exact-answer\n")
    one = command("train-grpo", f"--config={file}", "--dry-run", "--json", "--device", "cpu")
    assert json.loads(one.stdout)["config"]["grpo"]["reward"] == ["exact-answer"]
    file.write_text("max_steps: 7\nnum-generations: 16\nreward: [exact-answer, length]\n")
    result = command(
        "train-grpo", "--config", str(file), "--max-steps", "3", "--dry-run", "--json",
        "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    grpo = json.loads(result.stdout)["config"]["grpo"]
    assert (grpo["max_steps"], grpo["num_generations"]) == (3, 16)
    assert grpo["reward"] == ["exact-answer", "length"]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("max_steps: 1\nmax-steps: 2\n", "max-steps is given twice"),
        ("max_steps: yes\n", "max-steps takes a value, not true"),
    ],
)
def test_what_a_file_cannot_mean_is_told(
    held: str, said: str, command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(held)
    result = command("train-grpo", "--config", str(file), "--dry-run")
    assert result.exit_code == 2
    assert said in result.stderr


def test_switches_of_a_file_are_true_or_false(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("gradient_checkpointing: yes\njson: true\ndevice: cpu\n")
    result = command("train-grpo", "--config", str(file), "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["config"]["grpo"]["gradient_checkpointing"] is True


def test_what_a_reward_prints_is_no_data(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a step without any reward is a step: its mean is null."""
    (tmp_path / "talking_reward.py").write_text(
        "def talks(completions, **columns):\n"
        "    print('hello')\n"
        "    return [None] * len(completions)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = tmp_path / "run"
    words = ("--reward", "talking_reward:talks", "--output-dir", str(run))
    result = command(*SHORT, "--json", *words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["rewards"] == [None, None]
    assert "hello" in result.stderr


def test_no_reward_at_all_is_told_in_lines_too(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blank_reward.py").write_text(
        "def blank(completions, **columns):\n    return [None] * len(completions)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--reward", "blank_reward:blank", "--output-dir", str(tmp_path / "run"))
    result = command(*SHORT, *words)
    assert result.exit_code == 0, result.stderr
    assert "reward: nan -> nan" in result.stdout


def test_files_may_lie_in_the_folder_that_is_made(command: Any, tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    words = ("--stats-path", str(run / "s.json"), "--report", str(run / "page.html"))
    result = command(*SHORT, "--max-steps", "1", "--output-dir", str(run), *words)
    assert result.exit_code == 0, result.stderr
    assert (run / "s.json").is_file()
    assert (run / "page.html").is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--num-generations", "1"], 2, "--num-generations is 1; allowed: 2 or more"),
        (["--num-generations", "3"], 2, "no multiple of --num-generations 3"),
        (["--max-steps", "0"], 2, "--max-steps is 0"),
        (["--eval-size", "-1"], 2, "--eval-size is -1; allowed: 0 to "),
        (["--warmup-steps", "9" * 400], 2, "9...; allowed: 0 to 2147483647"),
        (["--learning-rate", "nan"], 2, "--learning-rate is nan"),
        (["--top-p", "0"], 2, "--top-p is 0.0"),
        (["--top-k", "-3"], 2, "--top-k is -3"),
        (["--temperature", "0"], 2, "--temperature is 0.0"),
        (["--is-correction", "some"], 2, "--is-correction is 'some'"),
        (["--optim", "adamw_tourch"], 2, "--optim 'adamw_tourch' is unknown"),
        (["--lr-scheduler", "lineer"], 2, "--lr-scheduler 'lineer' is unknown"),
        (["--loss-type", "nosuch"], 2, "--loss-type 'nosuch' is unknown"),
        (["--report-to", "nosuch"], 2, "--report-to 'nosuch' is unknown"),
        (["--dataset", "arithmatic"], 2, "--dataset 'arithmatic' is unknown"),
        (["--reward", "exact"], 2, "--reward 'exact' is unknown"),
        (["--optim", "galore_adamw"], 3, "--optim galore_adamw: "),
        (["--lr-scheduler", "reduce_lr_on_plateau"], 2, "requires an eval strategy"),
        (["--lr-scheduler", "warmup_stable_decay"], 2, "does not take these options"),
        (["--output-dir", "/dev/null/run"], 1, "/dev/null is no folder"),
        (["--rollout", "flux"], 2, "--rollout 'flux' is unknown"),
        (["--attn-impl", "sdpa"], 2, "--attn-impl is for hf and hf-cb, not for flex"),
        (["--adapter", "random"], 2, "takes no --adapter"),
        (["--resume"], 2, "holds no checkpoint"),
        (["--config", "nosuch.yaml"], 2, "--config nosuch.yaml cannot be read"),
        (["--stats-path", "/nosuch/s.json"], 1, "the folder does not exist"),
        (["--report", "page.txt"], 2, "--report"),
        (["--report", "/nosuch/page.html"], 1, "the folder does not exist"),
        (["--report", ""], 2, "--report is empty"),
        (["--stats-path", " "], 2, "--stats-path is empty"),
        (["--output-dir", ""], 2, "--output-dir is empty"),
        (["--max-seq-length", "10"], 2, "--max-seq-length 10 does not hold"),
        (["--max-prompt-length", "3"], 2, "--max-prompt-length 3: every prompt"),
        (["--rollout", "vllm"], 3, "vllm"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], code: int, said: str, command: Any, tmp_path: Path
) -> None:
    result = command(*SHORT, "--quiet", "--output-dir", str(tmp_path / "run"), *words)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) <= 2
    assert not (tmp_path / "run").exists()


def test_a_back_end_that_cannot_run_leaves_no_folder(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that learns so by its first rollout, of held-out problems or of the first step."""
    monkeypatch.setattr(setup, "check_module", lambda *asked: None)  # it would be told ahead
    run, page = tmp_path / "new" / "run", tmp_path / "page.html"
    words = ("--rollout", "hf-cb", "--output-dir", str(run), "--report", str(page))
    for held_out in ("4", "0"):
        result = command(*SHORT, "--quiet", *words, "--eval-size", held_out)
        assert (result.exit_code, result.stdout) == (3, ""), result.stderr
        assert "continuous batching cannot run" in result.stderr
        assert list(tmp_path.iterdir()) == []


def test_defaults_that_are_not_the_usual_ones_are_told(command: Any, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("train-grpo", "--dry-run", "--device", "cpu", "--json", "--dataset", str(data))
    result = command(*words)
    assert result.exit_code == 0, result.stderr
    said = "defaults of tiny-gemma4: --learning-rate 0.0025 --lora-rank 8 --warmup-steps 5"
    assert said in result.stderr.splitlines()
    assert json.loads(result.stdout)["config"]["grpo"]["learning_rate"] == 0.0025
    run = command(
        *SHORT, "--max-steps", "1", "--eval-size", "0", "--output-dir", str(tmp_path / "r")
    )
    assert run.stderr.count("defaults of tiny-gemma4 on arithmetic: --learning-rate 0.0025 ") == 1
    assert run.stderr.count("problems: arithmetic") == 1
    assert "rewards: exact-answer" in run.stderr.splitlines()


def test_an_unknown_key_of_the_file_names_the_nearest(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("learning-rte: 1\n")
    result = command("train-grpo", "--config", str(file))
    assert result.exit_code == 2
    assert "hint: did you mean learning-rate?" in result.stderr
    file.write_text("- a list\n")
    assert "holds no mapping" in command("train-grpo", f"--config={file}").stderr
