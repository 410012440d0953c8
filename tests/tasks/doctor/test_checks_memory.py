"""Whether the model asked for is supported and fits: verdicts at the edges of free memory."""

import json
import re

import pytest
import torch

from flexinfer.tasks.doctor.facts.memory_plan import BATCH, plan, weight_bytes
from flexinfer.tasks.doctor.facts.shapes import Shapes
from flexinfer.weights.place import choose_dtype
from tests.tasks.doctor.fakes import look, machine, on_cuda

SHAPE = Shapes(
    targets=800, linear=1000, other=500, adapter_row=10, kv_per_token=6, head_dims=(8,),
    layers=2, hidden=4, mlp=8, vocab=100, longest=1000,
)  # fmt: skip
GIB = 2**30
QWEN_NEED = 8.04e9 + 147456 * 64 * 2048
"""Weights and KV cache of qwen3-4b in bf16, as FACTS of the family give them."""


PLAIN = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
}  # fmt: skip


def gpu(tmp_path, free):
    return machine(tmp_path, {"torch_facts": on_cuda(free=int(free))})


def test_it_fits_and_says_what_is_left(tmp_path):
    line = look(gpu(tmp_path, 40e9), "memory", model="qwen3-4b")
    assert line.status == "ok"
    said = r"fits: 64 x 2048 tokens need ([\d.]+) GiB, 37\.3 GiB available"
    needed = float(re.fullmatch(said, line.found).group(1))
    assert QWEN_NEED / GIB + 0.5 < needed < QWEN_NEED / GIB + 2.5
    assert "7.5 GiB weights, 18.0 GiB KV cache" in line.why


def test_it_fits_in_part(tmp_path):
    line = look(gpu(tmp_path, 16e9), "memory", model="qwen3-4b")
    assert line.status == "warn"
    batch = int(re.match(r"fits in part: (\d+) x 2048", line.found).group(1))
    assert 15 <= batch <= 24
    assert f"--max-batch-size {batch}" in line.fix


@pytest.mark.parametrize(("model", "status"), [("qwen3-4b", "fail"), (None, "warn")])
def test_it_does_not_fit_and_only_a_model_that_was_asked_for_fails(tmp_path, model, status):
    line = look(gpu(tmp_path, 6e9), "memory", model=model)
    assert line.status == status
    assert "does not fit" in line.found


@pytest.mark.parametrize(("mode", "fewer"), [("bf16", True), ("4bit", False)])
def test_four_bits_are_advised_where_they_are_not_had_yet(tmp_path, mode, fewer):
    line = look(gpu(tmp_path, 2e9), "memory", model="qwen3-4b", mode=mode)
    assert line.status == "fail"
    assert ("--load-in-4bit" in line.fix) is fewer


def test_on_a_cpu_main_memory_counts_and_weights_are_float32(tmp_path):
    line = look(machine(tmp_path, memory=int(100e9)), "memory", model="qwen3-4b")
    assert line.status == "ok"
    assert "15.0 GiB weights" in line.why
    assert "--mode bf16 in float32 (a CPU's default dtype)" in line.why


def test_on_a_gpu_the_dtype_is_said_too(tmp_path):
    assert (
        "--mode bf16 in bfloat16: 7.5 GiB"
        in look(gpu(tmp_path, 40e9), "memory", model="qwen3-4b").why
    )


@pytest.mark.parametrize("cuda", [False, True])
def test_the_dtype_of_the_plan_is_the_one_that_models_are_loaded_in(tmp_path, cuda):
    there = gpu(tmp_path, 40e9) if cuda else machine(tmp_path, memory=int(100e9))
    device = torch.device("cuda" if cuda else "cpu")
    chosen, _ = choose_dtype("auto", device, torch.bfloat16)
    why = look(there, "memory", model="qwen3-4b").why
    assert f" in {str(chosen).removeprefix('torch.')}" in why
    assert f"{4.022e9 * chosen.itemsize / GIB:.1f} GiB weights" in why


def test_the_embedded_model_fits_a_laptop(tmp_path):
    line = look(machine(tmp_path, memory=int(2e9)), "memory")
    assert line.status == "ok"


def test_short_models_are_planned_at_their_own_length():
    assert plan(SHAPE, "bf16", 2).tokens == 1000
    assert plan(SHAPE, "bf16", 2).per_sequence == 6 * 1000 * 2


def test_what_a_mode_adds_to_the_weights():
    assert weight_bytes(SHAPE, "bf16", 2) == 1500 * 2
    assert weight_bytes(SHAPE, "lora", 2) == 1500 * 2 + 800 * 2 + 32 * 10 * 4
    assert weight_bytes(SHAPE, "grpo", 2) == 1500 * 2 + 800 * 2 + 32 * 10 * 10
    nf4_bits = (weight_bytes(SHAPE, "4bit", 2) - 500 * 2) / 1000 * 8
    assert nf4_bits == pytest.approx(4.127, abs=1e-3)


def test_the_largest_batch_is_exact_at_its_edge():
    made = plan(SHAPE, "bf16", 2)
    for batch in (1, 17, BATCH):
        assert made.largest_batch(made.needed(batch)) == batch
        assert made.largest_batch(made.needed(batch) - 1) == batch - 1
    assert made.largest_batch(made.needed(BATCH) * 2) == BATCH
    assert made.largest_batch(0) == 0


def folder(tmp_path, config):
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(made)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "qwen3_moe"}, "mixture of experts"),
        ({"model_type": "gemma4", "text_config": {"enable_moe_block": True}}, "mixture"),
        ({"model_type": "mamba"}, "does not run"),
        ({"model_type": "wombat", "num_experts": 4}, "is of the family wombat"),
        ({"model_type": "qwen3"}, "lacks 'num_hidden_layers'"),
        ({}, "names no model_type"),
        ("{", "cannot be read"),
        ("[]", "holds no JSON object"),
        ({"model_type": "gemma4", "text_config": 7}, "makes no sense"),
        (PLAIN | {"num_attention_heads": 0}, "makes no sense"),
        (PLAIN | {"hidden_size": "wide"}, "makes no sense"),
    ],
)
def test_models_that_flexinfer_does_not_run(tmp_path, config, said):
    line = look(machine(tmp_path), "model", model=folder(tmp_path, config))
    assert line.status == "fail"
    assert said in line.why
    assert line.fix
    assert said == "mixture of experts" or "smaller model" not in line.fix


def test_a_folder_without_a_config_is_no_model(tmp_path):
    line = look(machine(tmp_path), "model", model=str(tmp_path))
    assert line.status == "fail"
    assert "has no config.json" in line.why
    assert line.fix


def test_a_multimodal_config_is_read_for_its_text_model(tmp_path):
    text = {key: value for key, value in PLAIN.items() if key != "model_type"} | {"head_dim": 4}
    path = folder(tmp_path, {"model_type": "gemma4", "text_config": text})
    line = look(machine(tmp_path), "model", model=path)
    assert line.status == "ok", line
    assert "gemma4_text" in line.found


@pytest.mark.parametrize("check", ["model", "memory"])
def test_a_model_whose_config_is_not_here_is_skipped(tmp_path, check):
    assert look(machine(tmp_path), check, model="org/unknown").status == "skip"
    (tmp_path / "some.gguf").touch()
    line = look(machine(tmp_path), check, model=str(tmp_path / "some.gguf"))
    assert (line.status, line.found) == ("skip", "some: a .gguf file is read when it is loaded")


def test_the_model_that_generate_would_take_is_named(tmp_path):
    assert "tiny-gemma4" in look(machine(tmp_path), "model").found
    assert "gemma-4-E2B-it" in look(gpu(tmp_path, 1e10), "model").found
