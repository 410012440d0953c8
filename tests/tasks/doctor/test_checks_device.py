"""The device: a GPU that works, one that does not, one that is hidden, none."""

import pytest

from flexinfer.tasks.doctor.process import RunOutcome
from tests.tasks.doctor.fakes import CPU_TORCH, H200, look, machine, on_cuda, says

SMI = {"nvidia-smi": RunOutcome(code=0, stdout="580.65.06, NVIDIA H200\n")}
BLIND = says(
    CPU_TORCH | {"version": "2.11.0+cu130", "cuda": "13.0"},
    {"cuda_available": False, "cuda_error": "CUDA driver initialization failed"},
)
BUILD = CPU_TORCH | {"cuda": "13.0"}
FOUND = {"devices": [H200]}


def test_a_gpu_that_multiplies(tmp_path):
    line = look(machine(tmp_path, {"torch_facts": on_cuda()}), "device")
    memory = "138.0 GiB of 140.0 GiB available"
    assert (line.status, line.found) == ("ok", f"NVIDIA H200, sm_90, {memory}")


@pytest.mark.parametrize(("capability", "status"), [([7, 5], "warn"), ([6, 1], "fail")])
def test_old_capabilities(tmp_path, capability, status):
    old = on_cuda(capability=capability)
    assert look(machine(tmp_path, {"torch_facts": old}), "device").status == status


@pytest.mark.parametrize("error", [0.3, float("nan")])
def test_a_gpu_that_multiplies_wrongly(tmp_path, error):
    wrong = says(BUILD, FOUND, {"matmul_error": error})
    assert look(machine(tmp_path, {"torch_facts": wrong}), "device").status == "fail"


def test_a_crash_while_touching_the_gpu_is_told_beside_the_version(tmp_path):
    text = "RuntimeError: CUDA error: no kernel image is available"
    crash = machine(tmp_path, {"torch_facts": says(BUILD, FOUND, error=text)})
    assert look(crash, "torch").status == "ok"
    line = look(crash, "device")
    assert line.status == "fail"
    assert text in line.found


def test_a_gpu_that_torch_cannot_reach_fails(tmp_path):
    here = machine(tmp_path, {"torch_facts": BLIND, **SMI}, programs=["nvidia-smi"])
    line = look(here, "device")
    assert line.status == "fail"
    assert "CUDA driver initialization failed" in line.found


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_a_warning_that_names_the_variable(tmp_path, hidden):
    here = machine(
        tmp_path,
        {"torch_facts": BLIND, **SMI},
        programs=["nvidia-smi"],
        variables={"CUDA_VISIBLE_DEVICES": hidden},
    )
    line = look(here, "device")
    assert line.status == "warn"
    assert "CUDA_VISIBLE_DEVICES" in line.why


def test_no_gpu_at_all_is_fine(tmp_path):
    line = look(machine(tmp_path), "device")
    assert line.status == "ok"
    assert line.found.startswith("CPU, 2 cores, AVX512, ")
    assert line.found.endswith(" GiB available")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (says({"error": 1e-4, "replay_us": 4.2}), "ok"),
        (says({"error": 1.0, "replay_us": 4.2}), "fail"),
        (says(error="RuntimeError: CUDA error: operation not permitted"), "fail"),
    ],
)
def test_cuda_graphs(tmp_path, answer, status):
    here = machine(tmp_path, {"torch_facts": on_cuda(), "graph": answer})
    assert look(here, "cuda-graphs").status == status
    assert look(machine(tmp_path, {"graph": answer}), "cuda-graphs").status == "skip"
