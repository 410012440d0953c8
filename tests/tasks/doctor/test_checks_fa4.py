"""flash-attn-4 over capabilities, head dims and betas."""

import json

import pytest

from flexinfer.attention import choose_fa4
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
    return [argv[4:] for argv in here.run.asked if argv[3:4] and argv[3].endswith("fa4.py")]


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


def test_it_is_run_at_the_model_s_head_shape(tmp_path):
    here = gpu(tmp_path)
    line = look(here, "flash-attn-4", model="qwen3-4b")
    assert line.status == "ok"
    assert fa4_calls(here) == [["128x4"]]
    assert "head dims 128 of qwen3-4b" in line.found
    llama = gpu(tmp_path)
    assert look(llama, "flash-attn-4", model="llama-3.2-3b-instruct").status == "ok"
    assert fa4_calls(llama) == [["128x3"]]


def test_a_model_with_a_head_dim_that_it_lacks_is_told_so(tmp_path):
    gemma = gpu(tmp_path)
    line = look(gemma, "flash-attn-4", model="gemma-4-E2B-it")
    assert (line.status, fa4_calls(gemma)) == ("ok", [])
    assert "prefill does not use it" in line.why
    assert "reads no pages at head dim 512 on sm_90" in line.why


def test_what_auto_does_is_the_engine_s_own_word(tmp_path, monkeypatch):
    line = look(gpu(tmp_path), "flash-attn-4", model="qwen3-4b")
    assert "with --fa4-prefill (called directly" in line.why
    assert "auto: measured faster on sm_90" in line.why
    assert "8192 tokens on, and the limit here is 4096 (--max-seq-length)" in line.why
    monkeypatch.setattr(choose_fa4, "MEASURED_FASTER", {((9, 0), 128, 4): 4096})
    line = look(gpu(tmp_path), "flash-attn-4", model="qwen3-4b")
    assert line.why.startswith("prefill uses it: measured faster on sm_90 with head dim 128")


@pytest.mark.parametrize("kinds", [["full_attention", "sliding_attention"], None])
def test_windows_are_not_measured_and_doctor_says_so_too(tmp_path, monkeypatch, kinds):
    monkeypatch.setattr(choose_fa4, "MEASURED_FASTER", {((9, 0), 128, 4): 4096})
    config = {
        "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 256, "head_dim": 128,
        "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
        "vocab_size": 64, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1,
    } | ({} if kinds is None else {"layer_types": kinds})  # fmt: skip
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    line = look(gpu(tmp_path), "flash-attn-4", model=str(tmp_path / "model"))
    assert line.status == "ok"
    assert line.why.endswith("auto: not measured with windows")


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


@pytest.mark.parametrize(
    ("model", "beta", "status"),
    [
        ("qwen3-4b", "4.0.0b4", "warn"),
        ("qwen3-4b", "4.0.0b9", "ok"),
        ("llama-3.2-3b-instruct", "4.0.0b9", "warn"),
        ("llama-3.2-3b-instruct", "4.0.0b11", "ok"),
    ],
)
def test_versions_known_to_be_wrong(tmp_path, model, beta, status):
    line = look(gpu(tmp_path, beta, torch=on_cuda(capability=[10, 0])), "flash-attn-4", model=model)
    assert line.status == status
    assert ("flash-attn-4" in line.fix) is (status == "warn")


def test_a_signature_that_does_not_fit_is_told(tmp_path):
    skewed = look(gpu(tmp_path, beta="4.0.0b17"), "flash-attn-4", model="qwen3-4b")
    assert "does not fit" in skewed.why
    newer = gpu(tmp_path, beta="4.0.0b17", torch=on_cuda("2.12.0+cu130"))
    assert "does not fit" not in look(newer, "flash-attn-4", model="qwen3-4b").why
    before = gpu(tmp_path, beta="4.0.0b16")
    assert "does not fit" not in look(before, "flash-attn-4", model="qwen3-4b").why


def test_without_pages_on_a_device_it_is_not_run(tmp_path):
    here = gpu(tmp_path, torch=on_cuda(capability=[12, 0]))
    line = look(here, "flash-attn-4", model="qwen3-4b")
    assert (line.status, fa4_calls(here)) == ("ok", [])
    assert "no KV pages on sm_120" in line.why
