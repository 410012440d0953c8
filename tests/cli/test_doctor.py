"""`flexinfer doctor`: lines to read, a document to parse, a verdict to exit with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flexinfer.tasks.doctor import run as task
from flexinfer.tasks.doctor.report import CheckResult, DoctorConfig, DoctorReport


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DoctorConfig]:
    """Replace the checks by a fixed report; return what was asked."""
    asked: list[DoctorConfig] = []
    checks = (
        CheckResult(
            name="python", category="Python", status="ok", found="3.11", why="fine", fix=""
        ),
        CheckResult(
            name="peft", category="Packages", status="warn", found="none", why="w", fix="f"
        ),
    )

    def run(config: DoctorConfig, report: Any) -> DoctorReport:
        asked.append(config)
        return DoctorReport(checks=checks, strict=config.strict)

    monkeypatch.setattr(task, "run_doctor", run)
    return asked


def test_lines_under_their_categories(command: Any, asked: list[DoctorConfig]) -> None:
    result = command("doctor")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert lines == [
        ["Python"],
        ["ok", "python", "3.11", "(fine)"],
        [],
        ["Packages"],
        ["warn", "peft", "none"],
        ["why:", "w"],
        ["fix:", "f"],
        [],
        ["1", "ok,", "1", "warn,", "0", "fail,", "0", "skip"],
    ]
    assert asked == [DoctorConfig()]


def test_the_document(command: Any, asked: list[DoctorConfig]) -> None:
    words = ["--json", "--model", "m", "--mode", "grpo", "--check", "peft", "--strict"]
    result = command("doctor", *words)
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert asked == [DoctorConfig(model="m", mode="grpo", checks=("peft",), strict=True)]
    assert {"schema_version", "command", "config", "environment", "started_at"} <= set(document)
    assert document["ok"] is False
    assert document["config"]["checks"] == ["peft"]
    assert document["checks"][1] == {
        "name": "peft", "category": "Packages", "status": "warn", "found": "none", "why": "w",
        "fix": "f",
    }  # fmt: skip


def test_which_checks_there_are(command: Any, asked: list[DoctorConfig]) -> None:
    names = [line.split()[0] for line in command("doctor", "--list-checks").stdout.splitlines()]
    document = json.loads(command("doctor", "--list-checks", "--json").stdout)
    assert [check["name"] for check in document["checks"]] == names
    assert {"torch", "flex-128", "flex-256", "flex-512", "memory"} <= set(names)
    assert not asked


def test_lines_keep_to_a_narrow_screen(
    command: Any, asked: list[DoctorConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = command("doctor").stdout
    monkeypatch.setenv("COLUMNS", "16")
    narrow = command("doctor").stdout
    assert max(map(len, narrow.splitlines())) <= 16
    assert narrow.split() == wide.split()
    assert "      none" in narrow.splitlines()
    monkeypatch.setenv("COLUMNS", "wide")
    assert command("doctor").stdout == wide
