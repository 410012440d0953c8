"""The file of `--trace-path`: what torch.profiler saw, for a viewer of Chrome traces."""

from __future__ import annotations

from pathlib import Path

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.output_file import check_writable

FLAG = "--trace-path"
ENDINGS = (".json", ".json.gz")
DEFAULT = "flexinfer-trace.json.gz"


def check_trace(path: str) -> None:
    """Raise UsageError for another kind of file, WriteFailed where it could not be written."""
    if not path.endswith(ENDINGS):
        raise UsageError(f"{FLAG} is {path!r}; allowed: a file that ends in {' or '.join(ENDINGS)}")
    check_writable(Path(path), FLAG)


def default_trace() -> str:
    """Return DEFAULT, for who names no file; raises WriteFailed where it could not be written."""
    try:
        check_writable(Path(DEFAULT), "--profile's trace")
    except WriteFailed as error:
        raise WriteFailed(error.message, hint=f"give {FLAG} FILE") from error
    return DEFAULT
