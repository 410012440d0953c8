"""`flexinfer doctor`: what works on this machine, what does not, why, and the cure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from flexinfer.cli.console import Console, print_data
from flexinfer.cli.flags import option
from flexinfer.cli.options import MODEL_NAME, CommonFlags

if TYPE_CHECKING:
    from flexinfer.tasks.doctor.report import CheckResult, DoctorReport

CHECKS = "Checks"


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
        text, body, exit_code = _text(report), report.as_dict(), report.exit_code
    if common.as_json:
        whole = document("doctor", values, started_at) | body
        text = json.dumps(whole, ensure_ascii=False, indent=2) + "\n"
    print_data(text)
    return exit_code


def _text(report: DoctorReport) -> str:
    """Return the report as lines under their categories, then the count of each verdict."""
    lines = []
    for category, results in groupby(report.checks, key=lambda check: check.category):
        lines.append(category)
        for result in results:
            lines += _lines(result)
        lines.append("")
    counts = ", ".join(f"{number} {status}" for status, number in report.counts.items())
    return "\n".join([*lines, counts]) + "\n"


def _lines(result: CheckResult) -> list[str]:
    """Return a check's fact and, on lines of their own, the reason and the cure."""
    head = f"  {result.status:<4}  {result.name:<20} {result.found}"
    if result.status == "ok":
        return [f"{head} ({result.why})" if result.why else head]
    notes = [("why", result.why), ("fix", result.fix)]
    return [head, *(f"{'':28} {label}: {text}" for label, text in notes if text)]
