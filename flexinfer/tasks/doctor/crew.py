"""Processes that run side by side and can all be ended at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from flexinfer.tasks.doctor.process import RunOutcome, kill_group, run_process

NEVER_RAN = RunOutcome(code=-signal.SIGKILL)


class Crew:
    """A `Run` that many threads may call; after `stop` nothing runs any more, and nothing starts.

    Each process leads a group of its own, which the terminal's Ctrl-C does not reach.
    """

    def __init__(self) -> None:
        """Begin with no process."""
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._stopped = False

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> RunOutcome:
        """Run `argv` as `run_process` does; one that is ended, or not even begun, was killed."""
        if self._stopped:
            return NEVER_RAN
        return run_process(
            argv,
            timeout_s=timeout_s,
            variables=variables,
            on_line=on_line,
            on_start=self._join,
            on_end=self._leave,
        )

    def stop(self) -> None:
        """Kill every process group, now and from now on."""
        with self._lock:
            self._stopped = True
            for group in self._groups:
                kill_group(group)

    def _join(self, group: int) -> None:
        """Take a process in; it may have started while `stop` was at work."""
        with self._lock:
            self._groups.add(group)
            if self._stopped:
                kill_group(group)

    def _leave(self, group: int) -> None:
        """Forget a process that has ended, since its number may come to mean another."""
        with self._lock:
            self._groups.discard(group)
