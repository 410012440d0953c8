"""What becomes of generate's records: a file or stdout, failures on stderr, the JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from flexinfer.cli.console import print_data
from flexinfer.cli.failures import say_failure
from flexinfer.errors import WriteFailed
from flexinfer.tasks.generate.output import Format, OutputFile, Record, as_line

if TYPE_CHECKING:
    from flexinfer.tasks.generate.input import Item
    from flexinfer.tasks.generate.run import GenerateReport

_SHOWN_FAILURES = 10


class Results:
    """Takes records in input order; as a context it closes the output file.

    With `as_json` the records go into one document on stdout, which `finish` writes.
    """

    def __init__(
        self,
        target: str,
        form: Format,
        items: Sequence[Item],
        finished: Mapping[str | int, Record],
        *,
        as_json: bool,
        single: bool,
    ) -> None:
        """Open `target`, a file or - for stdout; raises WriteFailed.

        A `single` sample is shown while it grows (`live`) where a person reads stdout.
        """
        self._form, self._as_json = form, as_json
        self._ids = [item.id for item in items]
        self._made = list(finished.values())
        self._failures = 0
        self._file = None if target == "-" else OutputFile(Path(target), form, self._made)
        if self._file is None:
            print_data("")
        plain = self._file is None and form == "text" and not as_json
        self.live = single and plain and sys.stdout.isatty()

    def __enter__(self) -> Results:
        """Start taking records."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the output file, in input order unless something failed; raises WriteFailed."""
        if self._file is not None and kind is None:
            self._file.close(self._ids)
        elif self._file is not None:
            self._file.abandon()

    def add(self, record: Record) -> None:
        """Write a record where it belongs; raises WriteFailed, or BrokenPipeError."""
        if self._file is not None:
            self._file.write(record)
        elif self.live:
            print_data("\n")
        elif not self._as_json:
            print_data(as_line(record, self._form))
        if self._as_json:
            self._made.append(record)
        if "error" in record:
            self._say_failed(record)

    def finish(self, report: GenerateReport) -> int:
        """Write the document and return the exit code; raises what ended the work early."""
        hidden = self._failures - _SHOWN_FAILURES
        if hidden > 0:
            say_failure(f"{hidden} more requests failed")
        ended_by = report.tally.ended_by
        if self._as_json and not isinstance(ended_by, BrokenPipeError | WriteFailed):
            results = self._made
            if report.resumed:
                place = {name: index for index, name in enumerate(self._ids)}
                results = sorted(results, key=lambda record: place[record["id"]])
            print_data(json.dumps(report.as_dict(results), ensure_ascii=False, indent=2) + "\n")
        if ended_by is not None:
            raise ended_by
        return int(report.tally.failed > 0)

    def _say_failed(self, record: Record) -> None:
        """Say on stderr why a request failed, the first few times."""
        self._failures += 1
        if self._failures <= _SHOWN_FAILURES:
            say_failure(f"request {record['id']!r}: {record['error']}")
