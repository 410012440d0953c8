"""Help starts fast, and nothing heavy is imported before a command needs it."""

from __future__ import annotations

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


def test_version_and_the_list_of_commands(command: Any) -> None:
    assert command("--version").stdout == f"flexinfer {flexinfer.__version__}\n"
    listed = command("--help").stdout.split("Commands:")[1].split()
    commands = ("generate", "bench", "verify-drift", "train-grpo", "doctor")
    assert tuple(w for w in listed if w in commands) == commands
    assert command().stdout == command("--help").stdout == command("-h").stdout
