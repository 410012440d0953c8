"""Help starts fast, and nothing heavy is imported before a command needs it."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flexinfer

HEAVY = ("torch", "transformers", "numpy", "rich.console", "pydantic", "tokenizers")
LIMIT_S = 0.3


def cpu_seconds(words: list[str]) -> float:
    """Return the CPU time of a command line: what it takes on a machine with nothing else to do."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "flexinfer", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_is_fast(words: list[str]) -> None:
    assert any(cpu_seconds(words) < LIMIT_S for _ in range(3))


@pytest.mark.parametrize(
    "words", [["--help"], ["generate", "--help"], ["bench", "-h"], ["verify-drift", "-h"], []]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom flexinfer.cli.main import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr == "[]\n"
    assert "Usage: flexinfer" in done.stdout


UNNEEDED = (
    "peft", "trl", "datasets", "pandas", "matplotlib", "bitsandbytes", "gguf", "rich.console",
    "torch._inductor.compile_fx", "transformers.trainer",
    "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3",
    "flexinfer.kernels.fast.ops", "flexinfer.backends", "flexinfer.tasks.grpo.run",
    "flexinfer.tasks.bench", "flexinfer.tasks.drift",
)  # fmt: skip
"""What a plain generation on a CPU has no use for."""


def test_generate_imports_what_it_needs_and_no_more() -> None:
    code = (
        "import sys\nfrom flexinfer.cli.main import app\n"
        "words = ['generate', '--quiet', '--model', 'tiny-gemma4', '--device', 'cpu', '12+30=']\n"
        "app(words, standalone_mode=False)\n"
        f"print([m for m in {UNNEEDED!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("42\n", "[]\n")


@pytest.mark.parametrize(
    "code",
    [
        "from flexinfer import Engine",
        "from flexinfer.weights import names; names.default_model()",
        "from flexinfer.config import ModelOptions; from flexinfer.weights.load import load\n"
        "load(ModelOptions(model='tiny-gemma4', device='cpu'))",
    ],
)
def test_heavy_imports_are_spared_the_garbage_collector(code: str) -> None:
    """By itself it would come several hundred times."""
    code += "\nimport gc, torch; print(gc.get_stats()[0]['collections'], *gc.get_threshold())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    collections, *threshold = map(int, done.stdout.split())
    assert (collections < 150, threshold) == (True, list(gc.get_threshold()))


def test_a_config_alone_imports_no_model() -> None:
    code = (
        "import sys\nfrom flexinfer.weights import checkpoint, families, names\n"
        "raw = checkpoint.read_json(names.tiny_folder() / 'config.json')\n"
        "assert families.text_config(raw, 'tiny').model_type == 'gemma4_text'\n"
        "sys.exit('transformers.modeling_utils' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_doctor_starts_where_torch_is_missing() -> None:
    code = (
        "import sys\nsys.modules.update(torch=None, transformers=None, numpy=None)\n"
        "from flexinfer.cli.main import app\napp(['doctor', '--json', '--check', 'python'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert '"command": "doctor"' in done.stdout


def test_the_package_imports_no_torch() -> None:
    code = f"import flexinfer, sys; sys.exit(any(m in sys.modules for m in {HEAVY!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


INTERRUPTED = """
import os, sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == os.environ["INTERRUPTED"]:
            exec("raise KeyboardInterrupt")  # as in dataclasses, whose methods are made by exec
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize(
    "module", ["typer", "flexinfer.cli.main", "flexinfer.cli.terminal.failures"]
)
def test_an_interruption_of_the_start_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    variables = os.environ | {"INTERRUPTED": module, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "flexinfer"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


LEAVING = """
import atexit, gc, os, sys
class Late:
    def __init__(self):
        self.itself = self  # garbage that only the collector finds
        self.file = open(os.environ["LATE"], "w")
        self.file.write("kept")
    def __del__(self):
        self.file.close()
gc.disable()  # by itself it might come before the end
Late()
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 1000))
"""


def test_the_end_looks_for_garbage_once_and_then_no_more(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LEAVING)
    late = tmp_path / "late"
    variables = os.environ | {"LATE": str(late), "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "flexinfer", "--version"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=variables)
    assert done.stdout == f"flexinfer {flexinfer.__version__}\nfrozen True\n"
    assert late.read_text() == "kept"


def test_version_and_the_list_of_commands(command: Any) -> None:
    assert command("--version").stdout == f"flexinfer {flexinfer.__version__}\n"
    listed = command("--help").stdout.split("Commands:")[1].split()
    commands = ("generate", "bench", "verify-drift", "train-grpo", "doctor")
    assert tuple(w for w in listed if w in commands) == commands
    assert command().stdout == command("--help").stdout == command("-h").stdout
