"""What goes into doctor and what comes out: frozen records, JSON-ready."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from flexinfer.errors import UsageError

Status = Literal["ok", "warn", "fail", "skip"]
Mode = Literal["bf16", "lora", "4bit", "grpo"]


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """What to look at: `checks` empty is all; `model` None is the default model of this machine."""

    model: str | None = None
    mode: Mode = "bf16"
    checks: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a mode that does not exist."""
        if self.mode not in get_args(Mode):
            raise UsageError(f"--mode is {self.mode!r}; allowed: {', '.join(get_args(Mode))}")


@dataclass(frozen=True)
class Finding:
    """What one check saw: the fact, the reason for the verdict and the cure, one line each."""

    status: Status
    found: str
    why: str = ""
    fix: str = ""


def ok(found: str, why: str = "") -> Finding:
    """Say that it works."""
    return Finding("ok", found, why)


def warn(found: str, why: str, fix: str) -> Finding:
    """Say that it is wrong, but that what was asked for works without it."""
    return Finding("warn", found, why, fix)


def fail(found: str, why: str, fix: str) -> Finding:
    """Say that what was asked for will not work."""
    return Finding("fail", found, why, fix)


def skip(found: str, why: str = "", fix: str = "") -> Finding:
    """Say that it could not or need not be looked at."""
    return Finding("skip", found, why, fix)


def unfit(needed: bool, found: str, why: str, fix: str) -> Finding:
    """Fail where the mode needs what is broken, else warn."""
    return Finding("fail" if needed else "warn", found, why, fix)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of the report."""

    name: str
    category: str
    status: Status
    found: str
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """All lines, in the order in which they were looked at; categories are contiguous."""

    checks: tuple[CheckResult, ...]
    strict: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing failed and, where strict, nothing warned."""
        bad = {"fail", "warn"} if self.strict else {"fail"}
        return not any(check.status in bad for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0, or 1 where the verdict is negative."""
        return 0 if self.ok else 1

    @property
    def counts(self) -> dict[str, int]:
        """How many checks ended in each status, every status named."""
        seen = Counter(check.status for check in self.checks)
        return {status: seen[status] for status in get_args(Status)}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of `--json` that are doctor's own: `ok` and `checks`."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}
