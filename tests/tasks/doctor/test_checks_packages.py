"""Packages that are missing, old, broken or at odds, in modes that need them and others."""

import tomllib
from pathlib import Path

import pytest

from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.doctor.checks import binaries, packages
from flexinfer.tasks.doctor.facts.versions import older
from flexinfer.weights.families import check_transformers
from tests.tasks.doctor.fakes import look, machine, on_cuda, says

GEMMA, QWEN = "gemma-4-E2B-it", "qwen3-0.6b"


def transformers(version, error=None):
    return {
        "importing transformers": says(
            {"version": version}, *([] if error else [{"names": True}]), error=error
        )
    }


@pytest.mark.parametrize(
    ("version", "model", "status", "why"),
    [
        ("5.4.0", GEMMA, "fail", "came with 5.5.0"),
        ("5.5.0", GEMMA, "fail", "wrongly in training"),
        ("5.5.1", GEMMA, "fail", "wrongly in training"),
        ("5.5.1", QWEN, "fail", "needs 5.5.2"),
        ("5.5.2", GEMMA, "ok", ""),
        ("5.24.0", QWEN, "ok", ""),
    ],
)
def test_transformers_against_the_model(tmp_path, version, model, status, why):
    line = look(machine(tmp_path, transformers(version)), "transformers", model=model)
    assert line.status == status
    assert why in line.why
    assert version in line.found
    assert status == "ok" or "transformers>=5.5.2" in line.fix


def test_doctor_and_the_loader_agree_on_what_is_too_old():
    for version in ("5.4.0", "5.5.1", "5.5.2", "5.24.0"):
        try:
            check_transformers(version)
            accepted = True
        except EnvironmentUnfit:
            accepted = False
        assert accepted is not older(version, packages.OLDEST_TRANSFORMERS)


@pytest.mark.parametrize(("module", "metadata"), [("5.4.0", "5.24.0"), ("5.24.0", "5.4.0")])
def test_a_half_done_upgrade_is_as_old_as_its_oldest_part(tmp_path, module, metadata):
    here = machine(tmp_path, transformers(module), versions={"transformers": metadata})
    line = look(here, "transformers", model=QWEN)
    assert line.status == "fail"
    assert "5.4.0" in line.found


def test_what_is_imported_counts_more_than_the_metadata(tmp_path):
    answer = {"importing peft": says({"version": "0.17.0"}, {"names": True})}
    here = machine(tmp_path, answer, versions={"peft": "0.21.0"})
    assert look(here, "peft", mode="lora").status == "fail"


def test_the_class_of_the_model_is_imported(tmp_path):
    here = machine(tmp_path, transformers("5.24.0", "RuntimeError: operator torchvision::nms"))
    line = look(here, "transformers", model=QWEN)
    assert line.status == "fail"
    assert "torchvision::nms" in line.found
    assert here.run.asked[-1][4:] == ["transformers", "Qwen3ForCausalLM"]


def test_transformers_missing(tmp_path):
    line = look(machine(tmp_path, versions={}), "transformers", model=QWEN)
    assert (line.status, line.found) == ("fail", "not installed")


@pytest.mark.parametrize(
    ("name", "needing", "not_needing"),
    [
        ("peft", ("lora", "grpo"), ("bf16", "4bit")),
        ("bitsandbytes", ("4bit",), ("bf16", "lora", "grpo")),
        ("trl", ("grpo",), ("bf16", "lora", "4bit")),
        ("accelerate", ("grpo",), ("bf16", "lora", "4bit")),
        ("datasets", ("grpo",), ("bf16", "lora", "4bit")),
        ("flash-attn-4", (), ("bf16", "lora", "4bit", "grpo")),
        ("vllm", (), ("bf16", "lora", "4bit", "grpo")),
    ],
)
def test_a_missing_package_fails_only_the_modes_that_need_it(tmp_path, name, needing, not_needing):
    for modes, status in ((needing, "fail"), (not_needing, "skip")):
        for mode in modes:
            line = look(machine(tmp_path, versions={}), name, mode=mode)
            assert (line.status, line.found) == (status, "not installed"), mode
            assert line.fix


@pytest.mark.parametrize(("name", "mode"), [("peft", "lora"), ("trl", "grpo")])
def test_a_broken_package_fails_where_needed_and_warns_elsewhere(tmp_path, name, mode):
    broken = says({"version": "9.9"}, error="ImportError: cannot import name 'x' from 'y'")
    here = machine(tmp_path, {f"importing {name}": broken}, versions={name: "9.9"})
    line = look(here, name, mode=mode)
    assert line.status == "fail"
    assert "cannot import name" in line.found
    assert look(here, name, mode="bf16").status == "warn"


def test_a_package_without_metadata_is_found_by_its_module(tmp_path):
    answer = {"importing peft": says({"version": "0.17.0"}, {"names": True})}
    line = look(machine(tmp_path, answer, modules=["peft"]), "peft", mode="lora")
    assert line.status == "fail"
    assert "0.18" in line.why


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(error="RuntimeError: CUDA Setup failed despite GPU being available"), "CUDA Setup"),
        (says({"version": "0.50.0", "device": "cpu", "error": 0.9, "distance": 0.09}), "0.9"),
        (says({"version": "0.50.0", "device": "cpu", "error": 1e-3, "distance": 0.8}), "0.8"),
        (says({"version": "0.50.0", "device": "cpu", "error": float("nan"), "distance": 0.1}),
         "nan"),
    ],
)  # fmt: skip
def test_bitsandbytes_that_multiplies_wrongly(tmp_path, answer, said):
    here = machine(tmp_path, {"nf4": answer}, versions={"bitsandbytes": "0.50.0"})
    line = look(here, "bitsandbytes", mode="4bit")
    assert line.status == "fail"
    assert said in line.found
    assert line.found.startswith("0.50.0")
    assert look(here, "bitsandbytes", mode="bf16").status == "warn"


def test_bitsandbytes_that_multiplies(tmp_path):
    right = says({"version": "0.50.2"}, {"device": "cpu", "error": 2e-3, "distance": 0.092})
    here = machine(tmp_path, {"nf4": right}, versions={"bitsandbytes": "0.50.2"})
    assert look(here, "bitsandbytes", mode="4bit").status == "ok"


@pytest.mark.parametrize(
    ("trl", "vllm", "requires", "mode", "status"),
    [
        ("1.16.0", "0.33.0", ["vllm<=0.31.0,>=0.22.0; extra == 'vllm'"], "grpo", "fail"),
        ("1.16.0", "0.33.0", ["vllm<=0.31.0,>=0.22.0; extra == 'vllm'"], "bf16", "warn"),
        ("1.16.0", "0.31.0", ["vllm<=0.31.0,>=0.22.0; extra == 'vllm'"], "grpo", "ok"),
        ("1.16.0", "0.21.0", [], "grpo", "fail"),
        ("1.16.0", "0.33.0", [], "grpo", "fail"),
        ("1.16.0", "0.22.0", [], "grpo", "ok"),
        ("1.17.0", "0.33.0", ["vllm<=0.40"], "grpo", "ok"),
        ("1.17.0", "0.33.0", [], "grpo", "ok"),
    ],
)
def test_vllm_against_trl(tmp_path, trl, vllm, requires, mode, status):
    here = machine(tmp_path, versions={"trl": trl, "vllm": vllm}, requires={"trl": requires})
    line = look(here, "vllm", mode=mode)
    assert line.status == status
    assert vllm in line.found
    assert status == "ok" or "0.22.0" in line.fix


@pytest.mark.parametrize(
    ("torch", "answer", "status"),
    [
        (on_cuda(), says({"version": "3.6.0"}, {"names": True}), "ok"),
        (on_cuda(), says({"version": "3.5.1"}, {"names": True}), "warn"),
        (on_cuda(), says({"version": "3.6.0"}, error="ImportError: libtriton.so"), "fail"),
    ],
)
def test_triton_against_torch(tmp_path, torch, answer, status):
    here = machine(
        tmp_path,
        {"torch_facts": torch, "importing triton": answer},
        versions={"triton": "3.6.0"},
        requires={"torch": ['triton==3.6.0; platform_system == "Linux"']},
    )
    assert look(here, "triton").status == status


def test_triton_is_needed_for_cuda_only(tmp_path):
    assert look(machine(tmp_path), "triton").status == "skip"
    assert look(machine(tmp_path, {"torch_facts": on_cuda()}), "triton").status == "fail"


def test_the_minimum_versions_are_those_of_the_project_file():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    lines = project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]
    found = [v for m in (packages, binaries) for v in vars(m).values()]
    for package in (p for p in found if isinstance(p, packages.Package)):
        assert package.fix.removeprefix('pip install -U "').removesuffix('"') in lines
