"""Runs tests of own kernels in sessions of their own, where Triton interprets.

TRITON_INTERPRET counts when Triton is imported, so no other session can do it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
FOLDER = Path("tests/kernels/interpreted")


def obstacle() -> str | None:
    """Return why Triton's interpreter does not work here, None where it does."""
    old, new = Version(version("triton")) < Version("3.7"), Version(version("numpy"))
    if old and new >= Version("2.4"):
        return f"the interpreter of triton before 3.7 does not work with numpy {new}"
    return None


def interpret(file: str, root: Path = ROOT, *options: str) -> tuple[bool, str]:
    """Run one file of FOLDER, over the package in `root`; return whether all passed, and the end.

    Raises RuntimeError where tests did not run at all, so that no broken session looks like a test
    that failed.
    """
    command = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:warnings",
        *options, str(FOLDER / file),
    ]  # fmt: skip
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    said = done.stdout[-6000:] + done.stderr[-2000:]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}\n{said}")
    return done.returncode == 0, said
