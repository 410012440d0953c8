"""Training as it is watched: a row a step above a bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from flexinfer.cli.terminal.console import Console, say
from flexinfer.cli.terminal.screen import screen

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

    from flexinfer.tasks.grpo.records.record import StepRecord

ROWS = 20
"""Rows under one head; then the table stays where it is and a new one begins."""
PAUSE_S = 0.1
"""Between two drawings of what is being done: an engine tells every step."""


class GrpoProgress:
    """Progress of one run: `report`, `notice` and `add` are the callbacks that run_grpo takes.

    All of it goes to stderr; nothing is said where `quiet`. Leaving the context takes the bar away
    and leaves the rows.
    """

    def __init__(self, *, quiet: bool, max_steps: int) -> None:
        """Begin before the first of `max_steps` steps."""
        watched = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._plain = Console(quiet=quiet)
        self._quiet, self._max_steps = quiet, max_steps
        self._screen = StepScreen(max_steps) if watched else None

    def __enter__(self) -> GrpoProgress:
        """Show the bar."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._screen is not None:
            self._screen.close()

    def notice(self, line: str) -> None:
        """Say what runs and why."""
        if self._screen is not None:
            self._screen.notice(line)
        else:
            self._plain.notice(line)

    def report(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` units (0: unknown) of `stage` are done."""
        if self._screen is not None:
            self._screen.stage(stage, done, total)
        else:
            self._plain.report(stage, done, total)

    def add(self, record: StepRecord) -> None:
        """Show a finished step."""
        if self._screen is not None:
            self._screen.add(record)
        elif not self._quiet:
            from flexinfer.tasks.grpo.records.step_row import line

            say(line(record, self._max_steps))


class StepScreen:
    """The live part of a terminal: the rows since the last head, and what is being done."""

    def __init__(self, max_steps: int) -> None:
        """Start drawing."""
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._screen = screen()
        self._bar = Progress(
            TextColumn("step"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._screen,
        )
        self._steps = self._bar.add_task("", total=max_steps)
        self._rows: list[StepRecord] = []
        self._drawn_s = 0.0
        self._live = self._begin()

    def _begin(self) -> Live:
        """Return the drawing, begun."""
        from rich.live import Live

        live = Live(
            console=self._screen,
            get_renderable=self._shown,
            transient=True,
            auto_refresh=False,  # a thread of its own would draw between a row and its table
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        return live

    def notice(self, line: str) -> None:
        """Write a line above the live part."""
        self._screen.print(line, markup=False, highlight=False, soft_wrap=True)

    def stage(self, stage: str, done: int, total: int) -> None:
        """Say behind the bar what is being done."""
        self._bar.update(self._steps, description=f"{stage} {done}/{total}" if total else stage)
        if time.monotonic() - self._drawn_s >= PAUSE_S:
            self._draw()

    def add(self, record: StepRecord) -> None:
        """Add a row, and move the bar on; a full table is left behind above the live part."""
        self._rows.append(record)
        self._bar.update(self._steps, completed=record.step, description="")
        if len(self._rows) >= min(ROWS, self._screen.height - 6):
            self._leave_rows()
        self._draw()

    def close(self) -> None:
        """Stop drawing; the rows stay on the screen."""
        self._live.stop()
        self._leave_rows()

    def _draw(self) -> None:
        """Draw what is now."""
        self._drawn_s = time.monotonic()
        self._live.refresh()

    def _leave_rows(self) -> None:
        """Write the rows for good."""
        if self._rows:
            table, self._rows = _table(self._rows), []
            self._screen.print(table)

    def _shown(self) -> RenderableType:
        """Return what is drawn now."""
        from rich.console import Group

        parts = [_table(self._rows)] if self._rows else []
        return Group(*parts, self._bar)


def _table(steps: list[StepRecord]) -> Table:
    """Return steps as rows under their head, in columns as wide in any table."""
    from rich.table import Table
    from rich.text import Text

    from flexinfer.tasks.grpo.records.step_row import columns

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    shown = columns(steps)
    for column in shown:
        head = f"{column.name}\n{column.unit}"
        table.add_column(head, justify="right", min_width=column.width, no_wrap=True)
    for step in steps:
        table.add_row(*(Text(column.cell(step)) for column in shown))
    return table
