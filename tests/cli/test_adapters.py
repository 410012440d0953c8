"""`flexinfer generate --adapter` on the embedded model and the real engine (CPU, fp32)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from flexinfer.config import ModelOptions
from flexinfer.weights.load import load
from tests.support.oracle import hf_logits

WORDS = ("generate", "--model", "tiny-gemma4", "--device", "cpu", "--max-new-tokens", "6")
PROMPT = ("12+30=", "--chat-template", "none", "--ignore-eos", "--temperature", "0")
FILE = "adapter_model.safetensors"


def trained(seed: int = 0, scale: float = 0.5) -> PeftModel:
    """Return the embedded model under a non-zero adapter on all linear layers."""
    module: Any = load(ModelOptions(model="tiny-gemma4", device="cpu")).module
    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    peft: Any = get_peft_model(module, config)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if ".lora_B." in name:
                parameter.add_(torch.randn_like(parameter), alpha=scale)
    return peft.eval()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: Any) -> tuple[Path, PeftModel]:
    folder = tmp_path_factory.mktemp("adapter")
    peft = trained()
    peft.save_pretrained(folder)
    return folder, peft


def edited(folder: Path, to: Path, edit: Any) -> Path:
    """Return a copy of an adapter whose tensors went through `edit`."""
    to.mkdir()
    (to / "adapter_config.json").write_text((folder / "adapter_config.json").read_text())
    save_file(edit(load_file(folder / FILE)), to / FILE)
    return to


@pytest.mark.parametrize("mode", ["merged", "runtime"])
def test_its_tokens_are_pefts(command: Any, adapter: tuple[Path, PeftModel], mode: str) -> None:
    folder, peft = adapter
    words = (*WORDS, *PROMPT, "--adapter", str(folder), "--lora-mode", mode, "--format", "jsonl")
    result = command(*words)
    assert result.exit_code == 0
    assert f"LoRA: {mode}" in result.stderr
    assert "matched" in result.stderr
    record = json.loads(result.stdout)
    prompt, ids = record["prompt_token_ids"], record["outputs"][0]["token_ids"]
    rows = hf_logits(peft, [*prompt, *ids])[len(prompt) - 1 : -1]
    assert rows.argmax(-1).tolist() == ids
    assert record["policy_version"] == 0
    assert len(record["adapter_sha"]) == 64
    base = json.loads(command(*WORDS, *PROMPT, "--format", "jsonl").stdout)
    assert base["outputs"][0]["token_ids"] != ids
    assert "adapter_sha" not in base


def test_the_old_name_of_the_option(command: Any, adapter: tuple[Path, PeftModel]) -> None:
    result = command(*WORDS, *PROMPT, "--lora-adapter", str(adapter[0]))
    assert result.exit_code == 0
    assert "LoRA: merged" in result.stderr


def test_nothing_matched(command: Any, adapter: tuple[Path, PeftModel], tmp_path: Path) -> None:
    def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k.replace("self_attn", "attention").replace("mlp", "ff"): v
                for k, v in tensors.items() if "per_layer" not in k}  # fmt: skip

    folder = edited(adapter[0], tmp_path / "renamed", renamed)
    result = command(*WORDS, *PROMPT, "--adapter", str(folder))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-2].startswith("error: ") or "error: " in result.stderr


def test_a_delta_of_zero(command: Any, adapter: tuple[Path, PeftModel], tmp_path: Path) -> None:
    def zeroed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k: v * 0 if "lora_B" in k else v for k, v in tensors.items()}

    folder = edited(adapter[0], tmp_path / "zero", zeroed)
    result = command(*WORDS, *PROMPT, "--adapter", str(folder))
    assert result.exit_code == 0
    assert "adapter is a no-op" in result.stderr


def test_a_random_one_has_a_seed(command: Any) -> None:
    words = (*WORDS, *PROMPT, "--adapter", "random:8", "--format", "jsonl", "--logprobs")
    one, same, other = (
        json.loads(command(*words, "--seed", seed).stdout) for seed in ("1", "1", "2")
    )
    assert one == same
    assert one["adapter_sha"] != other["adapter_sha"]
    assert one["outputs"] != other["outputs"]


def test_a_resumed_run_keeps_its_adapter(
    command: Any, adapter: tuple[Path, PeftModel], tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    words = (*WORDS, "1+2=", "3+4=", "--output", str(target))
    with_adapter = ("--adapter", str(adapter[0]))
    assert command(*words, *with_adapter).exit_code == 0
    lines = target.read_text().splitlines(keepends=True)
    target.write_text(lines[0])
    result = command(*words, "--resume")
    assert result.exit_code == 2
    assert "was made with adapter" in result.stderr
    assert target.read_text() == lines[0]
    assert command(*words, *with_adapter, "--resume").exit_code == 0
    assert len(target.read_text().splitlines()) == 2


def test_a_mode_without_an_adapter(command: Any) -> None:
    result = command(*WORDS, *PROMPT, "--lora-mode", "runtime")
    assert result.exit_code == 2
    assert "--lora-mode runtime has no adapter" in result.stderr


@pytest.mark.parametrize("mode", ["merged", "runtime"])
def test_bench_checks_its_output_and_times_a_refresh(command: Any, mode: str) -> None:
    words = ("bench", "--model", "tiny-gemma4", "--device", "cpu", "--n-prompts", "3", "--json")
    words = (*words, "--max-new-tokens", "6", "--n-rounds", "2", "--prompt-length", "8:20")
    result = command(*words, "--adapter", "random:4", "--lora-mode", mode)
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["results"]
    assert row["gate"]["problem"] is None
    assert (row["lora_adapter"], row["lora_mode"]) == ("random:4", mode)
    assert 0 < row["refresh_s"] < 1


def test_bench_sees_an_adapter_that_is_not_there(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexinfer.weights.adapters.merged.MergedWeights.load", lambda *args: None)
    monkeypatch.setattr(
        "flexinfer.weights.adapters.targets.torch.Tensor.new_empty", torch.Tensor.new_zeros
    )
    words = ("bench", "--model", "tiny-gemma4", "--device", "cpu", "--n-prompts", "3", "--json")
    words = (*words, "--max-new-tokens", "6", "--n-rounds", "1", "--prompt-length", "8:20")
    result = command(*words, "--adapter", "random:4")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["results"][0]["gate"]["problem"]
