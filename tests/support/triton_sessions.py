"""Runs tests of own kernels in sessions of their own, where Triton interprets.

TRITON_INTERPRET counts when Triton is imported, so no other session can do it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
FOLDER = Path("tests/kernels/interpreted")
VERDICT = re.compile(rf"^(PASSED|FAILED|ERROR) {FOLDER}/(\w+\.py)", re.MULTILINE)


def obstacle() -> str | None:
    """Return why Triton's interpreter does not work here, None where it does."""
    old, new = Version(version("triton")) < Version("3.7"), Version(version("numpy"))
    if old and new >= Version("2.4"):
        return f"the interpreter of triton before 3.7 does not work with numpy {new}"
    return None


def interpret(
    files: Sequence[str], root: Path = ROOT, *options: str
) -> tuple[dict[str, Counter[str]], str]:
    """Run files of FOLDER, over the package in `root`; return their tests' verdicts, and the end.

    Verdicts are counted by file: PASSED, FAILED, ERROR. Starting a session takes as long as most
    files do.

    Raises RuntimeError where tests did not run at all, so that no broken session looks like a test
    that failed.
    """
    command = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:warnings",
        "-rA", *options, *(str(FOLDER / file) for file in files),
    ]  # fmt: skip
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    said = re.sub(r"^PASSED .*\n", "", done.stdout, flags=re.MULTILINE)[-6000:]
    said += done.stderr[-2000:]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}\n{said}")
    verdicts: dict[str, Counter[str]] = {file: Counter() for file in files}
    for verdict, file in VERDICT.findall(done.stdout):
        verdicts[file][verdict] += 1
    return verdicts, said
