"""Start a script of `probes/` in a process of its own and turn what it printed into facts."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flexinfer.tasks.doctor.environment import Environment
from flexinfer.tasks.doctor.process import RunOutcome

Row = Mapping[str, Any]
FOLDER = Path(__file__).parent / "probes"
LONGEST = 240
LAST: Mapping[str, str] = MappingProxyType(
    {"importing": "names", "torch_facts": "cuda_available", "nf4": "error", "graph": "error"}
)
"""A script -> what it has said when it came to its end; others have said something at least."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b(: .*)?")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The JSON lines a script printed before it ended, and in one line why it ended badly."""

    rows: tuple[Row, ...] = ()
    error: str | None = None
    seconds: float = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """All rows as one mapping, later ones over earlier ones."""
        return {key: value for row in self.rows for key, value in row.items()}

    def lacks(self, module: str) -> bool:
        """Whether the script ended because `module` itself is not there."""
        return self.error is not None and f"No module named '{module}'" in self.error


def run_probe(
    environment: Environment,
    script: str,
    *arguments: str,
    timeout_s: float,
    on_row: Callable[[Row], None],
) -> Probe:
    """Run `probes/SCRIPT.py`; `on_row` sees each JSON line as it is printed."""
    rows: list[Row] = []

    def take(line: str) -> None:
        if (row := _row(line)) is not None:
            rows.append(row)
            on_row(row)

    # -P: a probe must not find its neighbours in this folder instead of installed packages.
    paths = [str(FOLDER / f"{name}.py") for name in ("start", script)]
    argv = [environment.executable, "-P", *paths, *arguments]
    outcome = environment.run(
        argv, timeout_s=timeout_s, variables=environment.variables, on_line=take
    )
    error = failure_line(outcome, timeout_s)
    whole = any(LAST.get(script, key) == key for row in rows for key in row)
    if error is None and not whole:
        error = "it ended before it was done, without an error"  # as sys.exit(0) in an import does
    return Probe(rows=tuple(rows), error=error, seconds=outcome.seconds)


def failure_line(outcome: RunOutcome, timeout_s: float) -> str | None:
    """Say in one line why a process ended badly, None where it did not."""
    if outcome.code == 0:
        return None
    if outcome.code is None:
        return f"no answer within {timeout_s:.0f} s"
    if outcome.code < 0:
        return f"crashed ({signal.Signals(-outcome.code).name})"
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.fullmatch(line)]
    said = (raised or lines or ["nothing on stderr"])[-1]
    text = said if raised else f"exit code {outcome.code}: {said}"
    return clip(text)


def clip(text: str) -> str:
    """Make one line of at most LONGEST characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _row(line: str) -> Row | None:
    """Read a line of JSON that is an object; libraries may print other things."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None
