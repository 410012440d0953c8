"""Every check on machines where everything else goes wrong: a verdict, a reason, a cure."""

from collections.abc import Callable

import pytest

from flexinfer.tasks.doctor.process import RunOutcome
from flexinfer.tasks.doctor.registry import list_checks
from flexinfer.tasks.doctor.report import DoctorConfig
from flexinfer.tasks.doctor.run import run_doctor
from tests.tasks.doctor.fakes import look, machine, on_cpu, on_cuda

ANSWERS = (
    "nvidia-smi", "g++", "answer", "nf4", "graph", "flex", "fa4", "hub", "importing torch",
    "importing transformers", "importing peft", "importing trl", "importing vllm",
    "importing triton", "importing accelerate", "importing datasets", "importing flash_attn.cute",
)  # fmt: skip
PACKAGES = (
    "transformers", "peft", "trl", "vllm", "triton", "accelerate", "datasets", "bitsandbytes",
    "flash-attn-4",
)  # fmt: skip
VERSIONS = dict.fromkeys(PACKAGES, "9.9")
OUTCOMES = {
    "crashed": RunOutcome(code=-11),
    "hung": RunOutcome(code=None),
    "raised": RunOutcome(code=1, stderr="RuntimeError: odd\n"),
    "ended without a word": RunOutcome(code=0),
    "said nothing that is JSON": RunOutcome(code=0, stdout="hello\n[1]\n7\n"),
    "said half of it": RunOutcome(code=0, stdout='{"version": "1.0"}\n'),
}
TORCHES: dict[str, Callable[[], RunOutcome]] = {
    "no torch": lambda: RunOutcome(code=1, stderr="ModuleNotFoundError: No module named 'torch'\n"),
    "torch crashes": lambda: RunOutcome(code=-11),
    "torch says nothing": lambda: RunOutcome(code=0),
    "a CPU": on_cpu,
    "a GPU": on_cuda,
}


@pytest.mark.parametrize("mode", ["bf16", "4bit", "grpo"])
@pytest.mark.parametrize("torch", TORCHES)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_check_has_a_verdict_a_reason_and_a_cure(tmp_path, outcome, torch, mode):
    answers = dict.fromkeys(ANSWERS, OUTCOMES[outcome]) | {"torch_facts": TORCHES[torch]()}
    here = machine(tmp_path, answers, versions=VERSIONS)
    config = DoctorConfig(model="gemma-4-E2B-it", mode=mode)
    report = run_doctor(config, environment=here)
    assert [line.name for line in report.checks] == [check.name for check in list_checks()]
    for line in report.checks:
        assert "the check itself broke" not in line.found, line
        if line.status in ("warn", "fail"):
            assert line.found, line
            assert line.fix, line
    if torch.startswith(("no", "torch")):
        assert report.exit_code == 1


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("name", ["peft", "bitsandbytes", "cuda-graphs", "flex-128", "trl"])
def test_what_did_not_come_to_its_end_is_never_well(tmp_path, name, outcome):
    answers = dict.fromkeys(ANSWERS, OUTCOMES[outcome]) | {"torch_facts": on_cuda()}
    here = machine(tmp_path, answers, versions=VERSIONS)
    assert look(here, name, mode="grpo").status in ("warn", "fail")
