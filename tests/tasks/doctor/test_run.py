"""The run as a whole: order, what blocks what, crashes of a check, progress, refusals."""

import dataclasses
import json

import pytest

from flexinfer.errors import UsageError
from flexinfer.tasks.doctor import registry, run
from flexinfer.tasks.doctor.report import DoctorConfig
from flexinfer.tasks.doctor.run import run_doctor
from tests.tasks.doctor.fakes import machine, says


def doctor(environment, **config):
    return run_doctor(DoctorConfig(**config), environment=environment)


def test_every_check_gives_its_line_on_a_healthy_cpu(tmp_path):
    made = doctor(machine(tmp_path))
    assert [c.name for c in made.checks] == [c.name for c in registry.list_checks()]
    assert not [c for c in made.checks if c.status == "fail"]


def test_what_needs_a_failed_check_is_skipped_all_the_way_down(tmp_path):
    torch = says(error="ModuleNotFoundError: No module named 'torch'")
    made = doctor(machine(tmp_path, {"torch_facts": torch}), checks=("cuda-graphs",))
    lines = {c.name: c for c in made.checks}
    assert lines["torch"].status == "fail"
    assert (lines["device"].status, lines["device"].why) == ("skip", "it needs torch")
    assert (lines["cuda-graphs"].status, lines["cuda-graphs"].why) == ("skip", "it needs device")
    assert made.exit_code == 1


def test_only_what_was_asked_for_is_shown(tmp_path):
    made = doctor(machine(tmp_path), checks=("driver", "python"))
    assert [c.name for c in made.checks] == ["python", "driver"]


def test_a_check_that_breaks_is_a_line_and_the_others_go_on(tmp_path, monkeypatch):
    def breaks(context):
        raise ZeroDivisionError("one\ntwo")

    checks = list(registry.list_checks())
    checks[0] = dataclasses.replace(checks[0], run=breaks)
    monkeypatch.setattr(run, "select", lambda names: (checks[0], checks[1]))
    made = doctor(machine(tmp_path))
    assert made.checks[0].found == "the check itself broke: ZeroDivisionError: one two"
    assert made.checks[1].status == "ok"
    assert made.exit_code == 1


def test_progress_counts_the_checks(tmp_path):
    heard = []
    run_doctor(
        DoctorConfig(checks=("python", "headers")),
        report=lambda *what: heard.append(what),
        environment=machine(tmp_path),
    )
    assert heard == [("checking python", 0, 2), ("checking headers", 1, 2), ("done", 2, 2)]


def test_a_wrong_model_is_refused_before_anything_runs(tmp_path):
    here = machine(tmp_path)
    with pytest.raises(UsageError, match="qwen3-4bb") as caught:
        doctor(here, model="qwen3-4bb")
    assert "qwen3-4b" in caught.value.hint
    assert here.run.asked == []


def test_an_unknown_check_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'pyhton'"):
        doctor(machine(tmp_path), checks=("pyhton",))


def test_each_probe_runs_once(tmp_path):
    here = machine(tmp_path)
    doctor(here)
    asked = [json.dumps(argv) for argv in here.run.asked if "-P" in argv]
    assert len(asked) == len(set(asked))
