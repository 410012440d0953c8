"""What becomes of generate's records: a file or stdout, failures on stderr, the JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flexinfer.cli.terminal.console import print_data
from flexinfer.cli.terminal.failures import say_failure
from flexinfer.errors import WriteFailed
from flexinfer.tasks.generate.heading import headings
from flexinfer.tasks.generate.output import Format, as_line
from flexinfer.tasks.generate.resume import in_order

if TYPE_CHECKING:
    from flexinfer.tasks.generate.file import OutputFile
    from flexinfer.tasks.generate.input import Item
    from flexinfer.tasks.generate.records import Record
    from flexinfer.tasks.generate.run import GenerateReport

_SHOWN_FAILURES = 10


class Results:
    """Takes records in input order; `close` and `finish` are to be called when there are no more.

    With `as_json` the records go into one document on stdout, which `finish` writes.
    """

    def __init__(
        self,
        file: OutputFile | None,
        form: Format,
        items: Sequence[Item],
        finished: Mapping[str | int, Record],
        *,
        as_json: bool,
        single: bool,
        resumable: bool,
    ) -> None:
        """Write to `file`, or stdout; raises WriteFailed.

        Where a person reads stdout, a `single` sample is shown while it grows (`live`), and
        headings tell requests, and the samples of one, apart. An interruption tells of --resume
        where the work is `resumable` and some of it is written.
        """
        self._form, self._as_json, self._resumable = form, as_json, resumable
        self._ids = [item.id for item in items]
        self._made = list(finished.values())
        self._failures, self._announced = 0, set[tuple[object, str]]()
        self._file, self._shown, self._written = file, False, False
        if file is None:
            print_data("")
        else:
            file.keep(self._made)
        plain = file is None and form == "text" and not as_json
        self._watched = watched = plain and sys.stdout.isatty()
        self.live, self._headings = single and watched, headings(items) if watched else {}

    def announce(self, records: Iterable[Record]) -> None:
        """Say at once why these requests will fail; their records come later, at their places."""
        for record in records:
            self._say_failed(record)

    def show(self, text: str) -> None:
        """Write a piece of the text that is shown while it grows."""
        self._shown = True
        print_data(text)

    def add(self, record: Record) -> None:
        """Write a record where it belongs; raises WriteFailed, or BrokenPipeError."""
        failed = "error" in record
        alone = len(self._ids) == 1
        line = as_line(record, self._form, alone=alone, numbered=self._watched)
        if self._file is not None:
            self._file.write(line)
            self._written = True
        elif self.live:
            print_data("\n" if self._shown or not failed else "")
        elif not self._as_json:
            print_data(self._headings.get(record["id"], "") + line)
        if self._as_json:
            self._made.append(record)
        if failed:
            self._say_failed(record)

    def close(self, report: GenerateReport) -> None:
        """Close the output file, its records in input order; raises WriteFailed.

        A run that was cut short before its first record leaves the file as it was.
        """
        if self._file is not None and (self._written or report.tally.ended_by is None):
            self._file.close(self._ids)

    def finish(self, report: GenerateReport) -> int:
        """Write the document and return the exit code; raises what ended the work early."""
        hidden = self._failures - _SHOWN_FAILURES
        if hidden > 0:
            say_failure(f"{hidden} more requests failed")
        ended_by = report.tally.ended_by
        if self._as_json and not isinstance(ended_by, BrokenPipeError | WriteFailed):
            document = report.as_dict(in_order(self._made, self._ids))
            print_data(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
        if isinstance(ended_by, KeyboardInterrupt) and self._resumable and self._written:
            raise type(ended_by)("--resume makes the rest") from ended_by
        if ended_by is not None:
            raise ended_by
        return int(report.tally.failed > 0)

    def _say_failed(self, record: Record) -> None:
        """Say on stderr why a request failed, once, and only of the first few."""
        name, error = record["id"], record["error"]
        if (name, error) in self._announced:
            return
        self._announced.add((name, error))
        self._failures += 1
        if self._failures <= _SHOWN_FAILURES:
            say_failure(error if name is None else f"request {name!r}: {error}")
