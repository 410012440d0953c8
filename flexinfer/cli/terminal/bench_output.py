"""Where the figures of `flexinfer bench` go: stdout first, then the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flexinfer.cli.terminal.console import print_data
from flexinfer.cli.terminal.failures import explain, say_failure
from flexinfer.cli.terminal.width import screen_width

if TYPE_CHECKING:
    from flexinfer.tasks.bench.result import BenchReport


def put_out(report: BenchReport, form: str) -> None:
    """Print the figures, then write the files, each whatever became of those before it.

    All that went wrong is said, what ended the run included; the last of it is raised.
    """
    from flexinfer.tasks.bench.run import render, write_page, write_stats

    puts: tuple[Callable[[], None], ...] = (
        lambda: print_data(render(report, form, screen_width())),
        lambda: write_stats(report),
        lambda: write_page(report),
    )
    failed: list[BaseException] = []
    for put in puts:
        try:
            put()
        except (Exception, KeyboardInterrupt) as error:
            failed.append(error)
    if report.ended_by is not None:
        failed.append(report.ended_by)
    for earlier in failed[:-1]:
        if isinstance(earlier, Exception) and not isinstance(earlier, BrokenPipeError):
            said = explain(earlier)
            say_failure(said.message, said.hint)
    if failed:
        raise failed[-1]
