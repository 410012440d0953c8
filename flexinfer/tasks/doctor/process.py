"""Run a process that may hang or crash, and bring home what it said."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a process ended: `code` as subprocess gives it (negative: a signal), None timed out."""

    code: int | None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class Run(Protocol):
    """Something that runs a command line; each line of stdout is handed over as it comes."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> RunOutcome:
        """Run `argv` with the environment `variables`; never raises for what the process does."""
        ...


def run_process(
    argv: Sequence[str],
    *,
    timeout_s: float,
    variables: Mapping[str, str],
    on_line: Callable[[str], None],
    on_start: Callable[[int], None] = lambda group: None,
    on_end: Callable[[int], None] = lambda group: None,
) -> RunOutcome:
    """Run `argv` in a process group of its own, which is killed whole when time is up.

    `on_start` is given the group as it begins, `on_end` once it is dead.
    """
    began, lines = time.perf_counter(), []
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        try:
            process = _start(argv, variables, stderr)
        except OSError as error:
            return RunOutcome(code=127, stderr=str(error))
        expired = threading.Event()
        timer = threading.Timer(timeout_s, _expire, (process.pid, expired))
        timer.start()
        try:
            on_start(process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                on_line(line)
            code = process.wait()
        finally:
            timer.cancel()
            kill_group(process.pid)
            on_end(process.pid)
            process.wait()
        stderr.seek(0)
        return RunOutcome(
            code=None if expired.is_set() and code == -signal.SIGKILL else code,
            stdout="".join(lines),
            stderr=stderr.read(),
            seconds=time.perf_counter() - began,
        )


def _start(
    argv: Sequence[str], variables: Mapping[str, str], stderr: IO[str]
) -> subprocess.Popen[str]:
    """Start `argv` without stdin, its stdout a pipe of lines."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=dict(variables),
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _expire(group: int, expired: threading.Event) -> None:
    """Note that time is up and kill the group."""
    expired.set()
    kill_group(group)


def kill_group(group: int) -> None:
    """Kill what is left of a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
