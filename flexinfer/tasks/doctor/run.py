"""Run the checks one after the other; no check can take the others down."""

from __future__ import annotations

from flexinfer.config import Report, quiet
from flexinfer.errors import FlexinferError
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.environment import Environment, this_machine
from flexinfer.tasks.doctor.probe import clip
from flexinfer.tasks.doctor.registry import Check, select
from flexinfer.tasks.doctor.report import (
    CheckResult,
    DoctorConfig,
    DoctorReport,
    Finding,
    fail,
    skip,
)


def run_doctor(
    config: DoctorConfig, report: Report = quiet, environment: Environment | None = None
) -> DoctorReport:
    """Look at what `config` asks for; raises UsageError for an unknown check, mode or model.

    `report` hears of each check as it begins; `environment` is this machine where it is None.
    """
    checks = select(config.checks)
    names = frozenset(check.name for check in checks)
    context = Context(environment or this_machine(), config, names, report)
    context.refuse_wrong_model()
    done: dict[str, CheckResult] = {}
    for number, check in enumerate(checks):
        context.position = (number, len(checks))
        context.say(f"checking {check.name}")
        finding = _blocked(check, done) or _run(check, context)
        done[check.name] = CheckResult(
            name=check.name,
            category=check.category,
            status=finding.status,
            found=clip(finding.found),
            why=clip(finding.why),
            fix=clip(finding.fix),
        )
    report("done", len(checks), len(checks))
    return DoctorReport(checks=tuple(done.values()), strict=config.strict)


def _blocked(check: Check, done: dict[str, CheckResult]) -> Finding | None:
    """Return why `check` cannot be asked: something it needs failed, or was itself blocked."""
    for need in check.needs:
        if done[need].status == "fail" or done[need].found == _NOT_RUN:
            return skip(_NOT_RUN, f"it needs {need}", f"see the {need} line")
    return None


_NOT_RUN = "not run"


def _run(check: Check, context: Context) -> Finding:
    """Run one check; what it did not foresee becomes its own line instead of a traceback."""
    try:
        return check.run(context)
    except FlexinferError as error:
        return fail(error.message, "", error.hint or "")
    except Exception as error:
        found = f"the check itself broke: {type(error).__name__}: {error}"
        return fail(found, "this is a defect of doctor", "please report it with this line")
