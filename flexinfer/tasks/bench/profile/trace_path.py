"""The file of `--trace-path`: what torch.profiler saw, for a viewer of Chrome traces."""

from __future__ import annotations

from pathlib import Path

from flexinfer.errors import UsageError
from flexinfer.tasks.output_file import check_writable

FLAG = "--trace-path"
ENDINGS = (".json", ".json.gz")
DEFAULT = "flexinfer-trace.json.gz"


def check_trace(path: str) -> None:
    """Raise UsageError for another kind of file, WriteFailed where it could not be written."""
    if not path.endswith(ENDINGS):
        raise UsageError(f"{FLAG} is {path!r}; allowed: a file that ends in {' or '.join(ENDINGS)}")
    check_writable(Path(path), FLAG)
