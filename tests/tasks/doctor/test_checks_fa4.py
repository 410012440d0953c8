"""flash-attn-4 over capabilities, head dims and betas."""

import pytest

from flexinfer.tasks.doctor.checks.fa4 import supports
from tests.tasks.doctor.fakes import SYMBOL, look, machine, on_cuda, says

IMPORTS = says({"version": None}, {"names": True})


def gpu(tmp_path, beta="4.0.0b36", run=None, torch=None, importing=IMPORTS):
    answers = {
        "torch_facts": torch or on_cuda(),
        "importing flash_attn.cute": importing,
        "fa4": run or says({"head_dim": 128, "error": 0.01}),
    }
    return machine(tmp_path, answers, versions={"flash-attn-4": beta})


def fa4_calls(here):
    return [argv[3:] for argv in here.run.asked if argv[2:3] and argv[2].endswith("fa4.py")]


@pytest.mark.parametrize("mode", ["bf16", "lora", "4bit", "grpo"])
def test_an_undefined_symbol_is_a_warning_with_its_cure(tmp_path, mode):
    here = machine(
        tmp_path, {"importing flash_attn.cute": says(error=SYMBOL)}, modules=["flash_attn"]
    )
    line = look(here, "flash-attn-4", mode=mode)
    assert line.status == "warn"
    assert "undefined symbol" in line.found
    assert "built for another torch" in line.fix


def test_flash_attn_2_alone_is_not_flash_attn_4(tmp_path):
    only_2 = says(
        {"version": "2.8.3"}, error="ModuleNotFoundError: No module named 'flash_attn.cute'"
    )
    here = machine(tmp_path, {"importing flash_attn.cute": only_2}, modules=["flash_attn"])
    assert look(here, "flash-attn-4").found == "not installed"


def test_a_part_that_misses_something_is_broken_not_missing(tmp_path):
    inner = says(error="ModuleNotFoundError: No module named 'cutlass'")
    here = machine(tmp_path, {"importing flash_attn.cute": inner}, modules=["flash_attn"])
    assert look(here, "flash-attn-4").status == "warn"


def test_it_is_run_at_the_head_dims_it_has(tmp_path):
    here = gpu(tmp_path)
    assert look(here, "flash-attn-4", model="qwen3-4b").status == "ok"
    assert fa4_calls(here) == [["128"]]
    gemma = gpu(tmp_path, run=says({"head_dim": 256, "error": 0.01}))
    line = look(gemma, "flash-attn-4", model="gemma-4-E2B-it")
    assert fa4_calls(gemma) == [["256"]]
    assert "head dims 256 of gemma-4-E2B-it" in line.found


@pytest.mark.parametrize(
    "run",
    [
        says({"head_dim": 128, "failed": "TypeError: unexpected signature"}),
        says({"head_dim": 128, "error": 0.7}),
        says({"head_dim": 128, "error": float("nan")}),
        says(error="ImportError: late"),
        says(error="", code=-6),
    ],
)
def test_a_run_that_fails_or_is_wrong_is_a_warning(tmp_path, run):
    assert look(gpu(tmp_path, run=run), "flash-attn-4", model="qwen3-4b").status == "warn"


def test_before_hopper_it_is_not_run(tmp_path):
    here = gpu(tmp_path, torch=on_cuda(capability=[8, 0]))
    line = look(here, "flash-attn-4", model="qwen3-4b")
    assert (line.status, fa4_calls(here)) == ("ok", [])
    assert "sm_80" in line.why


def test_versions_known_to_be_wrong(tmp_path):
    blackwell = on_cuda(capability=[10, 0])
    crash = gpu(tmp_path, beta="4.0.0b9", torch=blackwell)
    assert look(crash, "flash-attn-4", model="qwen3-4b").status == "warn"
    skewed = look(gpu(tmp_path, beta="4.0.0b17"), "flash-attn-4", model="qwen3-4b")
    assert "called directly" in skewed.why
    newer = gpu(tmp_path, beta="4.0.0b17", torch=on_cuda("2.12.0+cu130"))
    assert "called directly" not in look(newer, "flash-attn-4", model="qwen3-4b").why
    before = gpu(tmp_path, beta="4.0.0b16")
    assert "called directly" not in look(before, "flash-attn-4", model="qwen3-4b").why


@pytest.mark.parametrize(
    ("capability", "head_dim", "beta", "expected"),
    [
        ((9, 0), 128, "4.0.0b9", True),
        ((9, 0), 256, "4.0.0b36", True),
        ((9, 0), 512, "4.0.0b36", False),
        ((10, 0), 128, "4.0.0b9", True),
        ((10, 0), 256, "4.0.0b10", False),
        ((10, 0), 256, "4.0.0b11", True),
        ((10, 0), 192, "4.0.0b36", False),
        ((10, 0), 512, "4.0.0b36", False),
        ((8, 0), 128, "4.0.0b36", False),
        ((12, 0), 128, "4.0.0b36", False),
    ],
)
def test_head_dims_by_capability(capability, head_dim, beta, expected):
    assert supports(capability, head_dim, beta) is expected
