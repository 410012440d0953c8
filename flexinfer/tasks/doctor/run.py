"""Run the checks side by side, tell them in their order; no check can take the others down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

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

Stages = SimpleQueue[str | None]
"""What checks say of their progress, from many threads; None wakes who waits for one to end."""

LONGEST = frozenset({"trl", "peft"})
"""Checks that import most, half of what doctor imports in all."""


def run_doctor(
    config: DoctorConfig, report: Report = quiet, environment: Environment | None = None
) -> DoctorReport:
    """Look at what `config` asks for; raises UsageError for an unknown check, mode or model.

    `report` hears, on the calling thread, of each check in turn and of stages of any check that
    runs meanwhile; `environment` is this machine where it is None. No process outlives the call.
    """
    checks, stages = select(config.checks), Stages()
    machine = environment or this_machine()
    names = frozenset(check.name for check in checks)
    context = Context(machine, config, names, stages.put)
    context.refuse_wrong_model()
    with ThreadPoolExecutor(len(checks)) as threads:
        try:
            # All begin at once, also those whose needs may turn out to have failed; those that take
            # longest are in front where they wait for a place, so that no one is left alone.
            begun = sorted(checks, key=lambda check: check.name not in LONGEST)
            running = {check.name: threads.submit(_run, check, context) for check in begun}
            for future in running.values():
                future.add_done_callback(lambda _: stages.put(None))
            results = tuple(_results(checks, running, stages, report))
        finally:
            machine.stop()
    report("done", len(checks), len(checks))
    shown = tuple(line for line in results if _is_shown(line, config.checks))
    return DoctorReport(checks=shown, strict=config.strict)


def _is_shown(line: CheckResult, asked: Sequence[str]) -> bool:
    """Whether a line was asked for, or says why one that was asked for could not be looked at."""
    return not asked or line.name in asked or line.status == "fail" or line.found == _NOT_RUN


def _results(
    checks: Sequence[Check],
    running: Mapping[str, Future[Finding]],
    stages: Stages,
    report: Report,
) -> Iterator[CheckResult]:
    """Yield the line of each check in order; one that is blocked is not waited for."""
    done: dict[str, CheckResult] = {}
    for number, check in enumerate(checks):
        future = running[check.name]
        report(f"checking {check.name}", number, len(checks))
        finding = _blocked(check, done)
        while finding is None and not (future.done() and stages.empty()):
            if (stage := stages.get()) is not None:
                report(stage, number, len(checks))
        done[check.name] = _line(check, finding or future.result())
        yield done[check.name]


def _line(check: Check, finding: Finding) -> CheckResult:
    """Return a check's line of the report."""
    return CheckResult(
        name=check.name,
        category=check.category,
        status=finding.status,
        found=clip(finding.found),
        why=clip(finding.why),
        fix=clip(finding.fix),
    )


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
