"""`flexinfer doctor`: what works on this machine, what does not, why, and the cure."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import MODEL_NAME, CommonFlags
from flexinfer.cli.terminal.console import Console, print_data
from flexinfer.cli.terminal.width import screen_width

if TYPE_CHECKING:
    from flexinfer.tasks.doctor.report import CheckResult, DoctorReport

CHECKS = "Checks"
INDENT = 29
NARROW = 60
"""Columns of a screen below which facts stand under the names of their checks."""


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """What to look at."""

    model: Annotated[str | None, MODEL_NAME] = None
    mode: Annotated[
        str,
        option(
            "--mode", panel=CHECKS, metavar="bf16|lora|4bit|grpo", help="What it should be fit for."
        ),
    ] = "bf16"
    check: Annotated[
        list[str] | None,
        option("--check", panel=CHECKS, metavar="CHECK", help="Only this one; repeatable."),
    ] = None
    list_checks: Annotated[
        bool, option("--list-checks", panel=CHECKS, help="Say which there are.")
    ] = False
    strict: Annotated[bool, option("--strict", panel=CHECKS, help="A warning fails, too.")] = False


def doctor(checks: CheckFlags, common: CommonFlags) -> int:
    """Check this machine and installation: facts, verdicts, cures."""
    from flexinfer.tasks.doctor.registry import list_checks
    from flexinfer.tasks.doctor.report import DoctorConfig
    from flexinfer.tasks.doctor.run import run_doctor
    from flexinfer.tasks.environment import document, now

    started_at = now()
    values: dict[str, Any] = {
        "model": checks.model,
        "mode": checks.mode,
        "checks": tuple(checks.check or ()),
        "strict": checks.strict,
    }
    config = DoctorConfig(**values)
    if checks.list_checks:
        rows = [{"name": c.name, "category": c.category, "about": c.about} for c in list_checks()]
        text = "".join(f"{row['name']:<20} {row['category']}: {row['about']}\n" for row in rows)
        body: dict[str, Any] = {"checks": rows}
        exit_code = 0
    else:
        with Console(quiet=common.quiet) as console:
            report = run_doctor(config, console.report)
        text, body, exit_code = _text(report, screen_width()), report.as_dict(), report.exit_code
    if common.as_json:
        whole = document("doctor", values, started_at) | body
        text = json.dumps(whole, ensure_ascii=False, indent=2) + "\n"
    print_data(text)
    return exit_code


def _text(report: DoctorReport, width: int | None) -> str:
    """Return the report as lines under their categories, then the count of each verdict.

    Lines are broken where `width` columns of a screen bound them.
    """
    lines = []
    for category, results in groupby(report.checks, key=lambda check: check.category):
        lines.append(category)
        for result in results:
            lines += _lines(result, width)
        lines.append("")
    counts = ", ".join(f"{number} {status}" for status, number in report.counts.items())
    return "\n".join([*lines, *_broken(counts, width)]) + "\n"


def _lines(result: CheckResult, width: int | None) -> list[str]:
    """Return a check's fact and, on lines of their own, the reason and the cure."""
    head = f"  {result.status:<4}  {result.name:<20} "
    fact = (
        f"{result.found} ({result.why})" if result.status == "ok" and result.why else result.found
    )
    notes = [] if result.status == "ok" else [("why", result.why), ("fix", result.fix)]
    labelled = [f"{label}: {text}" for label, text in notes if text]
    if width is not None and width < NARROW:
        indent = " " * 6
        below = [line for text in (fact, *labelled) for line in _broken(text, width, indent)]
        return [head.rstrip(), *below]
    first, *rest = _broken(fact, width, " " * len(head)) or [""]
    below = [line for text in labelled for line in _broken(text, width, " " * INDENT)]
    return [head + first.lstrip(), *rest, *below]


def _broken(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return `text` as indented lines of at most `width` columns, words left whole."""
    if width is None:
        return [indent + text]
    return textwrap.wrap(
        text,
        max(width, len(indent) + 1),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
