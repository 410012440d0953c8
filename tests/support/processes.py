"""Commands in processes of their own; none outlives the test that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FAKE = [sys.executable, "-m", "tests.support.fake_engine"]
GENERATE = [*FAKE, "generate", "--model", "m"]
ROOT = Path(__file__).parents[2]
_STARTED: list[subprocess.Popen[str]] = []


def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process whose stdout is buffered, as it is by default."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    variables |= options.pop("variables", {})
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    _STARTED.append(subprocess.Popen(words, text=True, cwd=ROOT, env=variables, **options))
    return _STARTED[-1]


def end_all() -> None:
    """Kill what a failed test has left running."""
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait()
