"""The files that a command line names: what they are, and that none is written over by mistake."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from flexinfer.errors import UsageError

if TYPE_CHECKING:
    from flexinfer.tasks.generate.file import OutputFile


def opened(target: str) -> AbstractContextManager[OutputFile | None]:
    """Take an output file as a context, None for `-`; raises WriteFailed or UsageError."""
    if target == "-":
        return nullcontext(None)
    from flexinfer.tasks.generate.file import OutputFile

    return OutputFile(Path(target))


def refuse_same(source: str | None, target: str) -> None:
    """Raise UsageError where output would go into the input, by whatever name; `-` is a stream."""
    if source is None:
        return
    read, written = _facts(source, sys.stdin), _facts(target, sys.stdout)
    if read is None or written is None or not stat.S_ISREG(read.st_mode):
        return
    if os.path.samestat(read, written):
        raise UsageError(
            f"--output {target} is the same file as --input {source}",
            hint="write to another file",
        )


def _facts(name: str, stream: TextIO | None) -> os.stat_result | None:
    """Return what a file is, or the `stream` that `-` stands for; None where there is none."""
    with suppress(OSError, ValueError):
        if name != "-":
            return os.stat(name)
        if stream is not None:
            return os.fstat(stream.fileno())
    return None
