"""Python, headers, torch and the driver on machines that lack one or the other."""

import pytest

from flexinfer.tasks.doctor.process import RunOutcome
from tests.tasks.doctor.fakes import CPU_TORCH, NO_CUDA, look, machine, on_cuda, says


def smi(driver: str) -> dict[str, RunOutcome]:
    return {"nvidia-smi": RunOutcome(code=0, stdout=f"{driver}, NVIDIA H200\n")}


def test_python(tmp_path):
    assert look(machine(tmp_path), "python").status == "ok"
    old = look(machine(tmp_path, python=(3, 10, 9)), "python")
    assert (old.status, old.found) == ("fail", "3.10.9")
    assert "3.11" in old.why


def test_headers(tmp_path):
    assert look(machine(tmp_path), "headers").status == "ok"
    bare = look(machine(tmp_path, headers=tmp_path / "nowhere"), "headers")
    assert bare.status == "warn"
    assert "python3.11-dev" in bare.fix


def test_torch_missing(tmp_path):
    missing = says(error="ModuleNotFoundError: No module named 'torch'")
    line = look(machine(tmp_path, {"torch_facts": missing}), "torch")
    assert (line.status, line.found) == ("fail", "not installed")
    assert "pip install torch" in line.fix


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (RunOutcome(code=-11), "crashed (SIGSEGV)"),
        (says(error="OSError: libcudart.so.13: cannot open"), "libcudart.so.13"),
        (says(error="ModuleNotFoundError: No module named 'filelock'"), "'filelock'"),
        (RunOutcome(code=None), "no answer within"),
    ],
)
def test_torch_that_cannot_be_imported(tmp_path, outcome, said):
    line = look(machine(tmp_path, {"torch_facts": outcome}), "torch")
    assert line.status == "fail"
    assert said in line.found
    assert line.fix


def test_torch_too_old(tmp_path):
    old = says(CPU_TORCH | {"version": "2.10.0+cu128"}, NO_CUDA)
    line = look(machine(tmp_path, {"torch_facts": old}), "torch")
    assert line.status == "fail"
    assert "2.11" in line.why


def test_torch_for_rocm_is_untested(tmp_path):
    rocm = says(CPU_TORCH | {"hip": "7.1"}, NO_CUDA)
    assert look(machine(tmp_path, {"torch_facts": rocm}), "torch").status == "warn"


@pytest.mark.parametrize(
    ("driver", "status"), [("580.65.06", "ok"), ("590.1", "ok"), ("575.57.08", "fail")]
)
def test_driver_against_the_cuda_build(tmp_path, driver, status):
    answers = {"torch_facts": on_cuda(), **smi(driver)}
    line = look(machine(tmp_path, answers, programs=["nvidia-smi"]), "driver")
    assert line.status == status
    assert driver in line.found
    assert status == "ok" or "580" in line.why


def test_a_cpu_build_beside_a_gpu_is_a_warning(tmp_path):
    line = look(machine(tmp_path, smi("580.1"), programs=["nvidia-smi"]), "driver")
    assert line.status == "warn"
    assert "NVIDIA H200" in line.why


@pytest.mark.parametrize(("torch", "status"), [({}, "fail"), ({"torch_facts": on_cuda()}, "warn")])
def test_a_driver_that_does_not_answer(tmp_path, torch, status):
    text = "Failed to initialize NVML: Driver/library version mismatch"
    dead = {"nvidia-smi": RunOutcome(code=18, stdout=text)}
    line = look(machine(tmp_path, dead | torch, programs=["nvidia-smi"]), "driver")
    assert (line.status, line.found) == (status, text)


def test_no_driver_is_skipped(tmp_path):
    assert look(machine(tmp_path), "driver").status == "skip"
