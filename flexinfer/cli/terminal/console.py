"""The two streams: data alone on stdout; notices and the progress of long work on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from flexinfer.cli.terminal.screen import screen
from flexinfer.errors import WriteFailed

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

INTERVAL_S = 5.0


def say(line: str) -> None:
    """Write one line to stderr; a stderr that is closed or full is nobody's failure."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{line}\n")  # at once: a signal may come between line and end
            sys.stderr.flush()


@contextlib.contextmanager
def stdout_for_data() -> Iterator[None]:
    """Send to stderr what anybody else writes to stdout meanwhile, a process that is started too.

    A stdout that is closed, or none of the system's, is only replaced in Python.
    """
    with contextlib.ExitStack() as after:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            ours, theirs = sys.stdout.fileno(), sys.stderr.fileno()
            sys.stdout.flush()
            kept = os.dup(ours)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, ours)
            os.dup2(theirs, ours)
        after.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def print_data(text: str) -> None:
    """Write to stdout and push it out; raises WriteFailed, or BrokenPipeError."""
    if sys.stdout is None:
        raise WriteFailed("cannot write standard output: it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteFailed(f"cannot write standard output: {error.strerror}") from error


class Console:
    """Notices and progress of one command; `report` is the callback that tasks take.

    On a terminal there is a bar (rich, which knows NO_COLOR), elsewhere a line every `INTERVAL_S`
    seconds, of what has lasted as long. Leaving the context takes the bar away.
    """

    def __init__(self, *, quiet: bool) -> None:
        """Say nothing at all where `quiet`."""
        self._quiet = quiet
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._last_line_s = time.monotonic()
        self._counts: dict[str, tuple[float, int]] = {}  # stage -> (when it began, units done)

    def __enter__(self) -> Console:
        """Start with no bar on the screen."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self.pause()

    def notice(self, line: str) -> None:
        """Say what runs and why."""
        if self._quiet:
            return
        if self._progress is None:
            say(line)
        else:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def report(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` units (0: unknown) of `stage` are done."""
        if self._quiet:
            return
        if sys.stderr is not None and sys.stderr.isatty():
            self._show_bar(stage, done, total)
        elif self._lasts(stage, done, total) and self._silent_s() >= INTERVAL_S:
            self._last_line_s = time.monotonic()
            say(f"{stage}: {done}/{total}" if total else f"{stage} ...")

    def _silent_s(self) -> float:
        """Return for how long no progress has been said, in seconds."""
        return time.monotonic() - self._last_line_s

    def _lasts(self, stage: str, done: int, total: int) -> bool:
        """Tell whether a stage is worth a line: a first count says nothing, nor does the last one.

        What cannot be counted is reported once, when it begins.
        """
        if not total:
            return True
        began_s, before = self._counts.pop(stage, (time.monotonic(), done))
        if done >= total:
            return False
        if done < before:  # a new round of the same
            began_s = time.monotonic()
        self._counts[stage] = began_s, done
        return time.monotonic() - began_s >= INTERVAL_S

    def pause(self) -> None:
        """Take the bar off the screen until the next report."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._bar = None

    def _show_bar(self, stage: str, done: int, total: int) -> None:
        """Draw the bar, or move it on."""
        if self._progress is None:
            from rich.progress import Progress

            self._progress = Progress(
                console=screen(),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._progress.start()
            self._bar = self._progress.add_task(stage, total=None)
        assert self._bar is not None
        self._progress.update(self._bar, description=stage, completed=done, total=total or None)
