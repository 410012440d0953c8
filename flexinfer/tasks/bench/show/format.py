"""A bench report as text: `table`, `json`, `csv` or `md`; pure functions from report to string."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial

from flexinfer.errors import UsageError
from flexinfer.tasks.bench.compare.agreement import HELD
from flexinfer.tasks.bench.compare.side_by_side import form_of, labels
from flexinfer.tasks.bench.profile.result import Profile
from flexinfer.tasks.bench.profile.table import profile_markdown, profile_table
from flexinfer.tasks.bench.result import BenchReport, BenchResult, Comparison
from flexinfer.tasks.bench.show.legend import legend
from flexinfer.tasks.bench.show.passed import agreements_in_brief, gates_at_once, passed
from flexinfer.tasks.columns import fitted, markdown, narrowed, number

Column = tuple[str, Callable[[BenchResult], str]]


def render(report: BenchReport, form: str, width: int | None = None) -> str:
    """Return `report` in one of FORMATS, ending in a newline; raises UsageError for another.

    A table goes to a screen of `width` columns, None where nothing bounds its lines.
    """
    if form not in FORMATS:
        raise UsageError(f"--format is {form!r}; allowed: {', '.join(FORMATS)}")
    return as_table(report, width) if form == "table" else FORMATS[form](report)


def as_table(report: BenchReport, width: int | None = None) -> str:
    """Return aligned columns under a heading, then what needs saying in words.

    On a narrow screen columns are left out, those that hold nothing first, before it is a list.
    """
    rows = table_rows(report)
    kept, out = narrowed(rows, [*_empty(rows), *LEAST], width)
    lines = fitted(kept, width=width)
    if out:
        lines += ["", f"left out for want of width: {', '.join(out)} (--format md has all)"]
    profiles = _profiles(report, partial(profile_table, width=width))
    whole = [*heading(report), "", *lines, "", *profiles, *words(report, brief=True)]
    if width is not None:
        whole = [part for line in whole for part in _broken(line, width)]
    return "\n".join(whole) + "\n"


def _broken(line: str, width: int) -> list[str]:
    """Return a line in parts of at most `width` columns, words left whole."""
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def as_markdown(report: BenchReport) -> str:
    """Return a Markdown table with the same heading and words."""
    lines, profiles = markdown(table_rows(report)), _profiles(report, profile_markdown)
    above = [f"{line}  " for line in heading(report)]
    below = (f"- {line}" for line in words(report))
    return "\n".join([*above, "", *lines, "", *profiles, *below]) + "\n"


def as_csv(report: BenchReport) -> str:
    """Return one line per row with every field; lists and maps are JSON in their cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(BenchResult)], lineterminator="\n")
    writer.writeheader()
    for row in report.results:
        writer.writerow({name: _cell(value) for name, value in asdict(row).items()})
    return out.getvalue()


def _cell(value: object) -> object:
    """Return what a CSV cell holds: nothing for None, JSON for what has parts or is a truth."""
    return json.dumps(value) if isinstance(value, tuple | dict | bool) else value


def table_rows(report: BenchReport) -> list[list[str]]:
    """Return the table's cells, its head first."""
    rows = report.results
    swept = [(name, cell) for name, cell in SWEPT if len(set(map(cell, rows))) > 1]
    columns = [COLUMNS[0], *swept, *COLUMNS[1:]]
    return [[name for name, _ in columns], *([cell(row) for _, cell in columns] for row in rows)]


def _empty(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of columns that have no figure in any row."""
    return [name for name, *cells in zip(*rows, strict=True) if set(cells) <= {"-"}]


def _step(row: BenchResult, name: str) -> str:
    """Format one step percentile."""
    return number((row.step_ms or {}).get(name), 2)


SWEPT: tuple[Column, ...] = (
    ("weights", lambda row: form_of(row) or "plain"),
    ("prompts", lambda row: row.prompt_length),
    ("new", lambda row: str(row.max_new_tokens)),
)
"""Columns that are shown where rows differ in them."""
COLUMNS: tuple[Column, ...] = (
    ("backend", lambda row: row.backend),
    ("batch", lambda row: str(row.max_batch_size)),
    ("tok/s", lambda row: number(row.decode_tps_median, 1)),
    ("best", lambda row: number(row.decode_tps_best, 1)),
    ("wall s", lambda row: number(row.median_wall_s, 3)),
    ("prefill/s", lambda row: number(row.prefill_tps, 0)),
    ("ttft s", lambda row: number(row.ttft_s, 3)),
    ("step p50 ms", lambda row: _step(row, "p50")),
    ("p99 ms", lambda row: _step(row, "p99")),
    ("roofline %", lambda row: number(row.roofline_pct, 1)),
    ("peak GB", lambda row: number(row.peak_memory_gb, 2)),
)
LEAST = ("best", "p99 ms", "prefill/s", "wall s")
"""Columns that a narrow screen can do without, the least needed first."""


def heading(report: BenchReport) -> list[str]:
    """Return one line per model: what ran on which workload, the prompts of each row listed."""
    counts: dict[tuple[str, str], list[str]] = {}
    for row in report.results:
        graphs = {True: "CUDA graphs", False: "no CUDA graphs", None: "not run"}
        samples = f"{row.n_samples} samples each, " if row.n_samples > 1 else ""
        adapter = f", adapter {row.lora_adapter} {row.lora_mode}" if row.lora_adapter else ""
        packed = f", {row.quantization}" if row.quantization else ""
        what = f"{row.model_name} ({row.backend}{packed}{adapter}, {graphs[row.capture_cudagraph]})"
        work = f"prompts of {row.prompt_length} tokens, {samples}{row.max_new_tokens} new"
        counts.setdefault((what, work), []).append(str(row.n_prompts))
    return [
        f"{what}: {', '.join(dict.fromkeys(seen))} {work}" for (what, work), seen in counts.items()
    ]


def words(report: BenchReport, *, brief: bool = False) -> list[str]:
    """Return what the columns cannot hold: definitions, problems, comparisons, the verdict.

    In `brief` what several rows passed alike is one line with the worst of their figures.
    """
    lines = legend(report.results)
    at_once = gates_at_once(report) if brief else []
    lines += at_once
    held = {name for one in report.agreements if one.tokens for name in (one.label, one.against)}
    for label, row in zip(labels(report.results), report.results, strict=True):
        found = f"failed: {row.error}" if row.error else _gate(row, label in held)
        if not (at_once and passed(row)):
            lines.append(f"{label}: {found}")
        if row.refresh_s is not None:
            lines.append(f"{label}: a refresh of the adapter takes {1e3 * row.refresh_s:.1f} ms")
        lines += [
            f"{label}: round {number} left out: {problem}"
            for number, problem in row.flagged_rounds.items()
        ]
    pairs = report.agreements
    lines += agreements_in_brief(pairs) if brief else [agreement.summary for agreement in pairs]
    lines += [_change(comparison) for comparison in report.comparisons]
    return [*lines, f"verdict: {report.verdict}"]


def _profiles(report: BenchReport, lines: Callable[[Profile], list[str]]) -> list[str]:
    """Return the profiles of all rows that have one, each under a line that says whose it is."""
    return [
        line
        for label, row in zip(labels(report.results), report.results, strict=True)
        if row.profile is not None
        for line in (f"{label}, profile of a decode step:", "",
                     *lines(row.profile), "")
    ]  # fmt: skip


def _gate(row: BenchResult, held: bool) -> str:
    """Return what was checked of a row's output; `held`: against another back end's."""
    if row.gate is not None:
        return row.gate.summary
    return HELD if held else "output gate: off, the output is unchecked"


def _change(comparison: Comparison) -> str:
    """Return one comparison as a line."""
    if comparison.change_pct is None:
        return f"{comparison.label}: {comparison.note}"
    was, now = comparison.decode_tps_baseline, comparison.decode_tps_now
    noise = "" if comparison.noise_pct is None else f", noise {comparison.noise_pct:.1f} %"
    line = f"{comparison.label}: {comparison.change_pct:+.1f} % ({was:.1f} -> {now:.1f}{noise})"
    said = f"; {comparison.note}" if comparison.note else ""
    return line + (" REGRESSION" if comparison.regression else "") + said


FORMATS: Mapping[str, Callable[[BenchReport], str]] = {
    "table": as_table,
    "json": BenchReport.to_json,
    "csv": as_csv,
    "md": as_markdown,
}
