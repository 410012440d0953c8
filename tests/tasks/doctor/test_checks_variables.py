"""Environment variables: each alone, set to something harmful, harmless or meaningless."""

import pytest

from tests.tasks.doctor.fakes import look, machine, on_cuda

GPU = {"torch_facts": on_cuda()}
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"}
NEW_NAME = {"PYTORCH_ALLOC_CONF": "expandable_segments:true"}


@pytest.mark.parametrize(
    ("check", "variables", "answers", "mode", "status"),
    [
        ("env-allocator", {}, {}, "bf16", "ok"),
        ("env-allocator", SEGMENTS, {}, "bf16", "warn"),
        ("env-allocator", NEW_NAME, {}, "lora", "warn"),
        ("env-allocator", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, {}, "grpo",
         "ok"),
        ("env-caching", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, GPU, "bf16", "fail"),
        ("env-caching", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, {}, "bf16", "warn"),
        ("env-caching", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, GPU, "bf16", "fail"),
        ("env-caching", {}, GPU, "bf16", "ok"),
        ("env-tf32", {"NVIDIA_TF32_OVERRIDE": "1"}, GPU, "bf16", "warn"),
        ("env-tf32", {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, {}, "bf16", "warn"),
        ("env-tf32", {"NVIDIA_TF32_OVERRIDE": "0"}, GPU, "bf16", "ok"),
        ("env-launch-blocking", {"CUDA_LAUNCH_BLOCKING": "1"}, {}, "bf16", "warn"),
        ("env-launch-blocking", {"CUDA_LAUNCH_BLOCKING": "0"}, {}, "bf16", "ok"),
        ("env-compile", {"TORCHDYNAMO_DISABLE": "1"}, GPU, "bf16", "fail"),
        ("env-compile", {"TORCH_COMPILE_DISABLE": "1"}, {}, "bf16", "warn"),
        ("env-compile", {}, GPU, "bf16", "ok"),
        ("env-inductor", {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, {}, "bf16", "warn"),
        ("env-inductor", {"TORCHINDUCTOR_NEW_THING": "1"}, {}, "bf16", "warn"),
        ("env-inductor", {"TORCHINDUCTOR_CACHE_DIR": "/tmp/x"}, {}, "bf16", "ok"),
        ("env-triton", {"TRITON_INTERPRET": "1"}, GPU, "bf16", "fail"),
        ("env-triton", {"TRITON_INTERPRET": "1"}, {}, "bf16", "warn"),
        ("env-offline", {}, {}, "bf16", "ok"),
        ("env-offline", {"HF_HUB_OFFLINE": "1"}, {}, "bf16", "ok"),
    ],
)  # fmt: skip
def test_a_variable_alone(tmp_path, check, variables, answers, mode, status):
    line = look(machine(tmp_path, answers, variables=variables), check, mode=mode)
    assert line.status == status
    if status in ("warn", "fail"):
        name = next(iter(variables))
        assert name in line.found
        assert f"unset {name}" in line.fix


def test_expandable_segments_fail_where_vllm_may_sleep(tmp_path):
    here = machine(tmp_path, variables=SEGMENTS, versions={"vllm": "0.30.0"})
    assert look(here, "env-allocator", mode="grpo").status == "fail"
    assert look(here, "env-allocator", mode="bf16").status == "warn"
    assert look(machine(tmp_path, variables=SEGMENTS), "env-allocator", mode="grpo").status == (
        "warn"
    )


def test_offline_with_a_model_that_is_not_here(tmp_path):
    here = machine(tmp_path, variables={"HF_HUB_OFFLINE": "ON"})
    assert look(here, "env-offline", model="qwen3-4b").status == "warn"
