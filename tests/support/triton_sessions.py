"""Runs tests of own kernels in sessions of their own, where Triton interprets.

TRITON_INTERPRET counts when Triton is imported, so no other session can do it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

ROOT = Path(__file__).parents[2]
FOLDER = Path("tests/kernels/interpreted")
FORKS = Path(__file__).with_name("triton_forks.py")
VERDICT = re.compile(rf"^(PASSED|FAILED|ERROR) {FOLDER}/(\w+\.py)", re.MULTILINE)
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:warnings", "-rA")


def obstacle() -> str | None:
    """Return why Triton's interpreter does not work here, None where it does."""
    old, new = Version(version("triton")) < Version("3.7"), Version(version("numpy"))
    if old and new >= Version("2.4"):
        return f"the interpreter of triton before 3.7 does not work with numpy {new}"
    return None


class Session(NamedTuple):
    """Files of FOLDER, or tests in them, to be run over the package in `root`."""

    tests: tuple[str, ...]
    root: Path = ROOT
    options: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return what follows `pytest`."""
        return [*OPTIONS, *self.options, *(str(FOLDER / test) for test in self.tests)]


class Sessions:
    """Sessions by name, started in their order and two at a time: forks of one process."""

    def __init__(self, asked: Mapping[str, Session], folder: Path) -> None:
        """Start the first ones; `folder` takes what they print."""
        self._ended: dict[str, tuple[int, str]] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(FORKS), str(folder)], text=True, start_new_session=True,
            env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            json.dump([[name, str(one.root), one.words()] for name, one in asked.items()], stdin)

    def result(self, name: str) -> tuple[dict[str, Counter[str]], str]:
        """Wait for a session; return its tests' verdicts, counted by file, and the end it printed.

        Verdicts are PASSED, FAILED, ERROR. Raises RuntimeError where tests did not run at all, so
        that no broken session looks like a test that failed.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        while name not in self._ended:
            if not (line := self._process.stdout.readline()):
                raise RuntimeError(f"no session any more\n{self._process.stderr.read()[-2000:]}")
            ended, *told = json.loads(line)
            self._ended[ended] = (told[0], told[1])
        code, out = self._ended[name]
        said = re.sub(r"^PASSED .*\n", "", out, flags=re.MULTILINE)[-6000:]
        if code not in (0, 1):
            raise RuntimeError(f"pytest ended with {code}\n{said}")
        verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        for verdict, file in VERDICT.findall(out):
            verdicts[file][verdict] += 1
        return verdicts, said

    def close(self) -> None:
        """End those that run, and begin no other."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
