"""The file of `--stats-path`: found unfit before an hour of measuring, written after it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flexinfer.errors import WriteFailed
from flexinfer.tasks.bench.result import BenchReport


def check_writable(path: Path) -> None:
    """Raise WriteFailed where `path` could not be written now; nothing is created."""
    if path.is_dir():
        raise WriteFailed(f"--stats-path {path} is a folder")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise WriteFailed(f"--stats-path {path}: the folder does not exist")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise WriteFailed(f"--stats-path {path} is not writable")
    if shutil.disk_usage(folder).free == 0 and not path.is_char_device():
        raise WriteFailed(f"--stats-path {path}: no space left on its disk")


def write_stats(report: BenchReport) -> None:
    """Write the JSON document to the `stats_path` of the config, if any; raises WriteFailed."""
    path = report.config["bench"]["stats_path"]
    if path is None:
        return
    try:
        Path(path).write_text(report.to_json(), encoding="utf-8")
    except OSError as error:
        raise WriteFailed(f"--stats-path {path}: {error.strerror}") from error
