"""Compilers that are absent or broken, and what the flex probe's rows mean."""

import json

import pytest

from flexinfer.tasks.doctor.checks.compilers import HEAD_DIMS
from flexinfer.tasks.doctor.process import RunOutcome
from flexinfer.tasks.doctor.report import DoctorConfig
from flexinfer.tasks.doctor.run import run_doctor
from tests.tasks.doctor.fakes import look, machine, on_cuda, says

GPU = {"torch_facts": on_cuda()}


def row(dim, error=1e-7, kernel="C++"):
    return {"head_dim": dim, "seconds": 8.0, "error": error, "kernel": kernel}


@pytest.mark.parametrize(("answers", "status"), [({}, "warn"), (GPU, "fail")])
@pytest.mark.parametrize(
    "broken",
    [
        {"programs": []},
        {"g++": RunOutcome(code=1, stderr="cc1plus: error: no such file\n")},
        {"answer": RunOutcome(code=126, stderr="permission denied")},
        {"answer": RunOutcome(code=0, stdout="41")},
    ],
)
def test_a_compiler_that_does_not_do(tmp_path, answers, status, broken):
    fields = {"programs": broken["programs"]} if "programs" in broken else {}
    given = answers | {k: v for k, v in broken.items() if k != "programs"}
    line = look(machine(tmp_path, given, **fields), "compiler")
    assert line.status == status
    assert line.fix


def test_the_compiler_is_the_one_torch_takes(tmp_path):
    clang = {"clang++": RunOutcome(code=0)}
    beside = machine(tmp_path, clang, programs=["clang++"])
    assert look(beside, "compiler").fix == "export CXX=clang++"
    asked = machine(tmp_path, clang, programs=["clang++"], variables={"CXX": "clang++ -v"})
    assert look(asked, "compiler").status == "ok"
    assert asked.run.asked[-2][:2] == ["/usr/bin/clang++", "-v"]


def test_a_working_compiler(tmp_path):
    assert look(machine(tmp_path), "compiler").status == "ok"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(row(128, 0.6)), "wrong by 0.6"),
        (says(row(128, float("nan"))), "wrong by nan"),
        (says({"head_dim": 128, "failed": "LoweringException: no AVX2"}), "no AVX2"),
        (says(row(256)), "no result"),
        (RunOutcome(code=-11), "SIGSEGV"),
        (RunOutcome(code=None), "no answer within"),
    ],
)
@pytest.mark.parametrize(("torch", "status"), [({}, "warn"), (GPU, "fail")])
def test_flex_that_fails_or_is_wrong(tmp_path, answer, said, torch, status):
    line = look(machine(tmp_path, {"flex": answer} | torch), "flex-128")
    assert line.status == status
    assert said in line.found


def test_bf16_kernels_may_be_off_by_a_rounding_but_the_cpu_may_not(tmp_path):
    for kernel, status in (("TRITON_DECODE", "ok"), ("C++", "warn")):
        here = machine(tmp_path, {"flex": says(row(128, 0.02, kernel))})
        assert look(here, "flex-128").status == status


def test_all_head_dims_share_a_process_and_say_how_far_they_are(tmp_path):
    heard = []
    here = machine(tmp_path, {"flex": says(row(128), row(256, 0.5), row(512))})
    made = run_doctor(
        DoctorConfig(checks=("flex-512", "flex-256", "flex-128")),
        report=lambda stage, done, total: heard.append(stage),
        environment=here,
    )
    lines = {c.name: c.status for c in made.checks}
    assert [lines[f"flex-{dim}"] for dim in HEAD_DIMS] == ["ok", "warn", "ok"]
    assert sum(argv[3:4] != [] and argv[3].endswith("flex.py") for argv in here.run.asked) == 1
    compiling = [stage for stage in heard if stage.startswith("compiling")]
    assert [stage.split(";")[0][-3:] for stage in compiling] == ["128", "256", "512"]


def test_one_head_dim_alone(tmp_path):
    here = machine(tmp_path, {"flex": says(row(256))})
    run_doctor(DoctorConfig(checks=("flex-256",)), environment=here)
    [asked] = [argv for argv in here.run.asked if argv[3:] and argv[3].endswith("flex.py")]
    assert asked[4:] == ["{}", "256"]


def test_on_cuda_the_engine_s_own_options_are_compiled(tmp_path):
    here = machine(tmp_path, GPU | {"flex": says(row(512, 0.01, "TRITON_DECODE"))})
    look(here, "flex-512")
    options = json.loads(here.run.asked[-1][4])
    assert options["512"]["BACKEND"] == "TRITON_DECODE"
