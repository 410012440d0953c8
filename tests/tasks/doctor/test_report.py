"""The verdict: what makes it negative, and what its JSON holds."""

import json

import pytest

from flexinfer.errors import UsageError
from flexinfer.tasks.doctor.report import CheckResult, DoctorConfig, DoctorReport


def report(*statuses: str, strict: bool = False) -> DoctorReport:
    checks = (
        CheckResult(name=f"c{i}", category="x", status=s, found="f", why="w", fix="x")
        for i, s in enumerate(statuses)
    )
    return DoctorReport(checks=tuple(checks), strict=strict)


@pytest.mark.parametrize(
    ("statuses", "strict", "code"),
    [
        (("ok", "skip"), True, 0),
        (("ok", "warn"), False, 0),
        (("ok", "warn"), True, 1),
        (("fail", "ok"), False, 1),
    ],
)
def test_only_a_fail_counts_and_a_warning_where_strict(statuses, strict, code):
    made = report(*statuses, strict=strict)
    assert (made.exit_code, made.ok) == (code, code == 0)


def test_json_holds_exactly_the_promised_fields():
    document = json.loads(json.dumps(report("ok", "warn").as_dict()))
    assert set(document) == {"ok", "checks"}
    assert set(document["checks"][0]) == {"name", "category", "status", "found", "why", "fix"}


def test_counts_name_every_status():
    assert report("ok", "ok", "fail").counts == {"ok": 2, "warn": 0, "fail": 1, "skip": 0}


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="allowed: bf16, lora, 4bit, grpo"):
        DoctorConfig(mode="8bit")
