"""What this version refuses is said in one voice by the refusals, by doctor and by the help."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer import unsupported
from flexinfer.cli.completions import read_commands
from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.doctor.registry import select
from tests.tasks.doctor.fakes import GIB, look, machine, on_cuda

NOT_YET = "(not in this version)"
TO_COME = sorted(mode for mode, what in unsupported.OF_MODE.items() if unsupported.lacks(what))


@pytest.fixture
def lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version in which nothing is left to come."""
    monkeypatch.setattr(unsupported, "UNSUPPORTED", frozenset())


@pytest.mark.parametrize("feature", sorted(unsupported.UNSUPPORTED))
def test_what_is_listed_is_refused_by_its_name(feature: str) -> None:
    with pytest.raises(EnvironmentUnfit) as caught:
        unsupported.refuse(feature, hint="wait")
    assert caught.value.message == f"{feature} is not in this version"
    assert caught.value.hint == "wait"
    assert not unsupported.refuse("--model")


@pytest.mark.parametrize("mode", TO_COME)
def test_doctor_fails_a_mode_that_no_command_has(tmp_path: Any, mode: str) -> None:
    line = look(machine(tmp_path), "version", mode=mode)
    assert line.status == "fail"
    assert f"--mode {mode} is not in this version" in line.found
    assert unsupported.OF_MODE[mode] in line.why
    assert "--mode bf16" in line.fix
    assert "pip" not in line.fix


@pytest.mark.parametrize("mode", ["bf16", "lora", "4bit", "grpo"])
def test_the_word_is_lifted_with_the_refusal(tmp_path: Any, lifted: None, mode: str) -> None:
    assert look(machine(tmp_path), "version", mode=mode).status == "ok"


@pytest.mark.parametrize("mode", ["bf16", "lora", "4bit"])
def test_these_modes_are_in_this_version(tmp_path: Any, mode: str) -> None:
    assert look(machine(tmp_path), "version", mode=mode).status == "ok"
    assert [check.name for check in select(("version",))] == ["version"]


@pytest.mark.parametrize("name", ["trl", "accelerate", "datasets", "flash-attn-4", "vllm"])
@pytest.mark.parametrize("mode", ["bf16", "lora", "4bit", "grpo"])
def test_a_missing_package_that_nothing_uses_has_no_cure(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    users = {"train-grpo", "--backend vllm", "--fa4-prefill"}
    monkeypatch.setattr(unsupported, "UNSUPPORTED", frozenset(users))
    line = look(machine(tmp_path, versions={}), name, mode=mode)
    assert (line.status, line.found, line.fix) == ("skip", "not installed", "")
    assert "nothing in this version uses it" in line.why


def test_one_feature_that_is_there_makes_its_package_worth_having(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsupported, "UNSUPPORTED", frozenset({"train-grpo"}))
    assert look(machine(tmp_path, versions={}), "peft", mode="lora").status == "fail"
    assert look(machine(tmp_path, versions={}), "trl", mode="grpo").status == "skip"


def test_memory_advises_no_option_that_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsupported, "UNSUPPORTED", frozenset({"--load-in-4bit"}))
    here = machine(tmp_path, {"torch_facts": on_cuda(free=2 * GIB)})
    assert "4bit" not in look(here, "memory", model="qwen3-4b").fix


def test_memory_advises_four_bits_where_they_are_to_be_had(tmp_path: Any, lifted: None) -> None:
    here = machine(tmp_path, {"torch_facts": on_cuda(free=2 * GIB)})
    assert "--load-in-4bit" in look(here, "memory", model="qwen3-4b").fix


def test_the_help_marks_what_is_refused_and_nothing_else() -> None:
    for command in read_commands():
        for option in command.options:
            listed = not unsupported.UNSUPPORTED.isdisjoint(option.names)
            assert (NOT_YET in option.help) is listed, (command.name, option.names)


def test_the_help_says_which_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsupported, "UNSUPPORTED", frozenset({"--backend vllm"}))
    said = unsupported.marked(["--backend"], "flex|hf|vllm", "Repeatable.")
    assert said == "Repeatable (vllm: not in this version)."
