"""The report as text: a table of verdicts, then each check in words."""

from __future__ import annotations

import textwrap

from flexinfer.tasks.columns import fitted
from flexinfer.tasks.drift.checks import Check, Value
from flexinfer.tasks.drift.report import DriftReport

HASH = 64
"""Characters of a sha256, of which a table shows the first twelve."""
HEAD = ["check", "verdict", "measured", "limit"]


def as_table(report: DriftReport, width: int | None = None) -> str:
    """Return the table and the words, for a screen of `width` columns (None: of any)."""
    head = (
        f"{report.model_name}, {report.mode} ({report.lora_mode}), adapter {report.adapter}: "
        f"{report.n_iters} cycles of noise {report.noise_scale:g}, prompts of "
        f"{', '.join(map(str, report.prompt_tokens))} tokens"
    )
    rows = [HEAD, *(_cells(check) for check in report.checks)]
    words = [f"{check.name}: {check.detail}" for check in report.checks]
    failed = [check.name for check in report.checks if not check.passed]
    verdict = f"verdict: drift ({', '.join(failed)})" if failed else "verdict: no drift"
    lines = [*_broken(head, width), "", *fitted(rows, words=2, width=width), ""]
    lines += [part for line in words for part in _broken(line, width)]
    return "\n".join([*lines, *_broken(verdict, width)]) + "\n"


def _cells(check: Check) -> list[str]:
    """Return a row."""
    bound = ">" if check.name == "adapter_effect" else ""
    verdict = "ok" if check.passed else "FAIL"
    return [check.name, verdict, _number(check.measured), bound + _number(check.limit)]


def _number(value: Value) -> str:
    """Return a figure in a few characters."""
    if isinstance(value, str):
        return value[:12] if len(value) == HASH else value
    return "-" if value is None else f"{value:.3g}"


def _broken(line: str, width: int | None) -> list[str]:
    """Return a line in parts of at most `width` columns, words left whole."""
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
