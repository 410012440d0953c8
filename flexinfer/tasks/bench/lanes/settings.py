"""The settings of a run and where it ran, as tables of names and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flexinfer.tasks.bench.result import BenchReport
from flexinfer.tasks.charts.chart import Table

FAMILY = "Settings"


def settings(report: BenchReport) -> list[Table]:
    """Return one table for each part of the config, one for the environment, one of notices."""
    environment = dict(report.environment)
    versions = environment.pop("versions", {})
    parts: dict[str, Mapping[str, Any]] = {
        "Workload": report.config.get("bench", {}),
        "Model": report.config.get("model", {}),
        "Engine": report.config.get("engine", {}),
        "Environment": environment | (dict(versions) if isinstance(versions, dict) else {}),
    }
    found = [
        Table(
            title=title,
            rows=[["", ""], *([name, _said(value)] for name, value in part.items())],
            words=2,
            family=FAMILY,
        )
        for title, part in parts.items()
        if part
    ]
    ran = _ran(report)
    if ran:
        found.append(Table(title="What ran", rows=[["", ""], *ran], words=2, family=FAMILY))
    return found


def _ran(report: BenchReport) -> list[list[str]]:
    """Return every notice but the output gate's, behind the back ends that it is of."""
    said: dict[str, list[str]] = {}
    for row in report.results:
        for line in row.notices:
            said.setdefault(line, []).append(row.backend)
    return [
        [", ".join(dict.fromkeys(names)), line]
        for line, names in said.items()
        if not line.startswith("output gate")
    ]


def _said(value: Any) -> str:
    """Return a value as a reader would write it."""
    if value is None or value == () or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
