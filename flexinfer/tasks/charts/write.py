"""The file of `--report`: its kind is its ending."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from flexinfer.errors import EnvironmentUnfit, UsageError, install_hint
from flexinfer.tasks.charts.chart import Page
from flexinfer.tasks.output_file import check_writable, write_whole

FLAG = "--report"
KINDS = (".html", ".png")


def check_kind(path: str) -> None:
    """Raise UsageError for a file that is neither HTML nor PNG by its name."""
    if not path.lower().endswith(KINDS):
        raise UsageError(f"{FLAG} is {path!r}; allowed: a file that ends in {' or '.join(KINDS)}")


def check_report(path: str) -> None:
    """Raise where a report could not be written later.

    UsageError for another kind of file, EnvironmentUnfit without matplotlib, else WriteFailed.
    """
    check_kind(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentUnfit(
            f"{FLAG} needs matplotlib, which is not installed",
            hint=install_hint("report"),
        )
    check_writable(Path(path), FLAG)


def write_report(path: str, page: Page) -> None:
    """Draw and write a page; raises as check_report does."""
    check_report(path)
    from flexinfer.tasks.charts.html import as_html
    from flexinfer.tasks.charts.png import as_png

    make = as_png if path.lower().endswith(".png") else as_html
    write_whole(Path(path), make(page), FLAG)
