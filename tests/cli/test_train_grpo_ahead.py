"""What `train-grpo` refuses at once, and what its --dry-run refuses of a model as a run does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.test_train_grpo import SHORT
from tests.cli.test_train_grpo_plan import refused_alike
from tests.support.grpo_runs import few_sums
from tests.support.processes import start

QUICK = """
import json, sys
from flexinfer.cli.main import app
codes = [app(words, standalone_mode=False) for words in json.loads(sys.argv[1])]
large = [m for m in ("torch", "transformers", "trl", "datasets") if m in sys.modules]
print(json.dumps([codes, large]))
"""


@pytest.fixture(autouse=True)
def _few_sums() -> Iterator[None]:
    with few_sums():
        yield


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_what_needs_no_library_waits_for_none(dry: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n')
    bad = (
        ["--num-generations", "3"],
        ["--model", "nosuch"],
        ["--dataset", "nosuch"],
        ["--dataset", str(tmp_path / "nosuch.jsonl")],
        ["--dataset", str(tmp_path / "one.jsonl")],
        ["--reward", "nosuch"],
        ["--rollout", "flux"],
        ["--rollout", "hf", "--lora-mode", "merged"],
        ["--compile-mode", "default"],
        ["--loss-type", "nosuch"],
        ["--top-p", "0"],
        ["--max-seq-length", "8"],
        ["--report", "page.txt"],
        ["--report", str(tmp_path / "nosuch" / "page.html")],
        ["--output-dir", ""],
        ["--resume"],
    )
    output = ("--output-dir", str(tmp_path / "run"))
    lines = json.dumps([[*SHORT, *output, *words, *dry] for words in bad])
    stdout, stderr = start([sys.executable, "-c", QUICK, lines]).communicate(timeout=60)
    codes, imported = json.loads(stdout)
    assert (codes, imported) == ([2] * 13 + [1, 2, 2], []), stderr
    assert stderr.count("error: ") == len(bad)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--max-seq-length", "8"], 2, "--max-seq-length 8 leaves no token to a prompt"),
        (["--max-seq-length", "10"], 2, "--max-seq-length 10 does not hold the longest prompt"),
        (["--max-prompt-length", "3"], 2, "--max-prompt-length 3: every prompt of arithmetic"),
        (["--rollout", "hf", "--lora-mode", "merged"], 2, "means nothing to hf"),
        (["--lr-scheduler", "reduce_lr_on_plateau"], 2, "requires an eval strategy"),
        (["--lr-scheduler", "warmup_stable_decay"], 2, "num_decay_steps"),
        (["--optim", "galore_adamw"], 3, "--optim galore_adamw: "),
        (["--rollout", "hf-cb"], 3, "continuous batching cannot run this gemma4_text: "),
        (["--rollout", "hf", "--attn-impl", "nosuch"], 3, "--attn-impl nosuch: "),
        (["--attention", "triton"], 3, "--attention triton cannot be had: "),
    ],
)
def test_a_plan_refuses_what_the_model_would_show(
    words: list[str], code: int, said: str, command: Any, tmp_path: Path
) -> None:
    given = (*words, "--output-dir", str(tmp_path / "run"))
    assert said in refused_alike(command, given, code)


def test_a_plan_takes_what_a_run_takes(command: Any, tmp_path: Path) -> None:
    """The longest sum has 22 tokens."""
    output = ("--output-dir", str(tmp_path / "run"))
    for words in (
        ("--max-seq-length", "64"),
        ("--rollout", "hf", "--attn-impl", "eager"),
        ("--rollout", "hf-cb", "--model", "qwen3-0.6b", "--load-format", "dummy"),
        ("--lr-scheduler", "cosine"),
    ):
        plan = command(*SHORT, "--dry-run", "--max-completion-length", "8", *output, *words)
        assert plan.exit_code == 0, plan.stderr


def test_a_plan_for_several_processes_meets_none(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    plan = command(*SHORT, "--dry-run", "--json", "--output-dir", str(tmp_path / "run"))
    assert plan.exit_code == 0, plan.stderr
    assert json.loads(plan.stdout)["batch"]["completions_per_step"] == 16 * 1


@pytest.mark.parametrize("rollout", ["flex", "vllm"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_broken_vllm_that_trl_imports_is_the_machines_fault(
    rollout: str, dry: tuple[str, ...], tmp_path: Path
) -> None:
    """TRL imports it where it is installed, whatever rolls out."""
    broken = tmp_path / "vllm"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    meta = tmp_path / "vllm-0.30.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n")
    words = [*SHORT, "--rollout", rollout, "--output-dir", str(tmp_path / "run"), *dry]
    process = start(
        [sys.executable, "-m", "flexinfer", *words], variables={"PYTHONPATH": str(tmp_path)}
    )
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (3, "")
    assert "libcudart.so.13" in stderr
    assert "Traceback" not in stderr


def test_what_a_reward_writes_past_python_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os, torch\n"
        "def reward(completions, **columns):\n"
        "    os.write(1, b'written')\n"
        "    os.system('echo by a process')\n"
        "    torch.set_grad_enabled(False)\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    words = [*SHORT, "--reward", "loud:reward", "--output-dir", str(tmp_path / "run"), "--json"]
    process = start(
        [sys.executable, "-m", "flexinfer", *words], variables={"PYTHONPATH": str(tmp_path)}
    )
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["command"] == "train-grpo"
    assert "written" in stderr
    assert "by a process" in stderr


@pytest.mark.parametrize("flag", ["--stats-path", "--report"])
@pytest.mark.parametrize(
    "name",
    ["adapter_model.safetensors", "rollouts.jsonl", "README.md", "checkpoint-2", "checkpoint-2/a"],
)
def test_the_runs_own_files_are_not_written_over(
    flag: str, name: str, command: Any, tmp_path: Path
) -> None:
    result = command(*SHORT, "--output-dir", str(tmp_path), flag, str(tmp_path / name))
    assert result.exit_code == 2
    assert "is a file of the run itself" in result.stderr


def test_a_folder_whose_name_is_no_text_is_refused(command: Any, tmp_path: Path) -> None:
    result = command(*SHORT, "--output-dir", str(tmp_path / "a\udcff"))
    assert result.exit_code == 2
    assert "is no text in UTF-8" in result.stderr


def test_a_tilde_is_home(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command(*SHORT, "--output-dir", "~/run", "--quiet").exit_code == 0
    assert (tmp_path / "run" / "adapter_model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_seed_may_be_larger_than_numpys(command: Any, tmp_path: Path) -> None:
    result = command(*SHORT, "--output-dir", str(tmp_path / "run"), "--seed", str(2**63 - 1))
    assert result.exit_code == 0


@pytest.mark.parametrize("change", ["renamed", "reshaped"])
def test_a_checkpoint_of_another_adapter_is_refused(
    change: str, command: Any, tmp_path: Path
) -> None:
    words = (*SHORT, "--output-dir", str(tmp_path / "run"))
    assert command(*words).exit_code == 0
    (last,) = (tmp_path / "run").glob("checkpoint-*")
    tensors = load_file(last / "adapter_model.safetensors")
    name = min(tensors)
    odd = tensors.pop(name)
    tensors |= {"x.y": odd} if change == "renamed" else {name: odd[:1].clone()}
    save_file(tensors, last / "adapter_model.safetensors")
    result = command(*words, "--resume", "--max-steps", "9")
    assert result.exit_code == 2
    assert "is not of this run's adapter: " in result.stderr
