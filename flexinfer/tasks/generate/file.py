"""The output file of `generate`: one process at a time, no result lost, nothing made in vain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from flexinfer.errors import WriteFailed
from flexinfer.tasks.generate.claim import check_folder, is_plain, make, replaced, take
from flexinfer.tasks.generate.records import Record
from flexinfer.tasks.generate.resume import in_order, read_records


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn what the system says of a failed write into WriteFailed; a closed pipe stays one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteFailed(f"cannot write {name}: {error.strerror}") from error


class OutputFile:
    """A file of lines that grows line by line, so that a crash loses none of them.

    It starts with the `kept` records of an earlier run. Until the first line is written (or the
    file is closed) what it held stays, and where there was none there is none: a run that never
    starts leaves no trace. As a context it gives the file up.
    """

    def __init__(self, path: Path) -> None:
        """Take the file; raises WriteFailed, or UsageError where another process has it."""
        self._path, self._name = path, str(path)
        self._kept: Sequence[Record] = ()
        with writing(self._name):
            self._stream = take(path)
        self._begun = False

    def __enter__(self) -> OutputFile:
        """Hold the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the file as it is, unless it was closed."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()

    def keep(self, records: Sequence[Record]) -> None:
        """Start with these records; raises WriteFailed where the file cannot be replaced."""
        self._kept = records
        if records:
            with writing(self._name):
                check_folder(self._path)

    def write(self, line: str) -> None:
        """Write a line and push it out; raises WriteFailed, BrokenPipeError or UsageError."""
        stream = self._begin()
        with writing(self._name):
            stream.write(line)
            stream.flush()

    def close(self, order: Sequence[str | int | None]) -> None:
        """Close the file, its records in the `order` of their ids; raises as `write` does."""
        stream = self._begin()
        with writing(self._name):
            if self._kept:
                records = read_records(self._path)
                ordered = in_order(records, order)
                if ordered != records:  # the old file stays locked until the new one is in place
                    replaced(self._path, ordered).close()
            stream.close()

    def _begin(self) -> TextIO:
        """Drop the old content or make the file, once; return the stream to write to."""
        with writing(self._name):
            if self._stream is None:
                self._stream = make(self._path)
            elif not self._begun and self._kept:
                old, self._stream = self._stream, replaced(self._path, self._kept)
                old.close()
            elif not self._begun and is_plain(self._stream):
                self._stream.truncate(0)
        self._begun = True
        return self._stream
