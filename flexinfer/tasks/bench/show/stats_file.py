"""The file of `--stats-path`, written after an hour of measuring."""

from __future__ import annotations

from pathlib import Path

from flexinfer.tasks.bench.result import BenchReport
from flexinfer.tasks.output_file import check_writable, write_whole

FLAG = "--stats-path"


def check_stats(path: str) -> None:
    """Raise WriteFailed where `path` could not be written now; nothing is created."""
    check_writable(Path(path), FLAG)


def write_stats(report: BenchReport) -> None:
    """Write the JSON document to the `stats_path` of the config, if any; raises WriteFailed."""
    path = report.config["bench"]["stats_path"]
    if path is not None:
        write_whole(Path(path), report.to_json().encode(), FLAG)
