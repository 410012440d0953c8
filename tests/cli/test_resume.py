"""`generate --resume` over the embedded model: what other weights made is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from flexinfer.weights.names import tiny_folder

WORDS = ("generate", "1+2=", "3+4=", "--device", "cpu", "--max-new-tokens", "3")
TINY = ("--model", "tiny-gemma4")
RANDOM = (*TINY, "--adapter", "random:4")
OTHERS = [
    (TINY, (*TINY, "--dtype", "bfloat16"), "dtype float32, now dtype bfloat16"),
    (TINY, (*TINY, "--load-in-4bit"), "no quantization, now quantization nf4"),
    ((*TINY, "--load-in-4bit"), TINY, "quantization nf4, now no quantization"),
    (TINY, RANDOM, "no adapter, now adapter "),
    (RANDOM, TINY, ", now no adapter"),
    (RANDOM, (*RANDOM, "--lora-mode", "runtime"), "LoRA mode merged, now LoRA mode runtime"),
    (RANDOM, (*TINY, "--adapter", "random:5"), ", now adapter "),
    ((*RANDOM, "--load-in-4bit"), (*RANDOM, "--load-in-4bit", "--lora-mode", "merged"),
     "LoRA mode runtime, now LoRA mode merged"),
]  # fmt: skip


@pytest.mark.parametrize("left", [1, 2])
@pytest.mark.parametrize(("first", "other", "said"), OTHERS)
def test_what_other_weights_made(
    command: Any, tmp_path: Path, left: int, first: Any, other: Any, said: str
) -> None:
    if "--load-in-4bit" in (*first, *other):
        pytest.importorskip("bitsandbytes")
    target = tmp_path / "out.jsonl"
    assert command(*WORDS, *first, "--output", str(target)).exit_code == 0
    kept = "".join(target.read_text().splitlines(keepends=True)[:left])
    target.write_text(kept)
    result = command(*WORDS, *other, "--output", str(target), "--resume", "--quiet")
    assert (result.exit_code, target.read_text()) == (2, kept)
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: --resume: record 0 was made with ")
    assert said in error
    assert hint.startswith("hint: resume with the same input")
    assert command(*WORDS, *first, "--output", str(target), "--resume").exit_code == 0
    assert len(target.read_text().splitlines()) == 2


def test_a_checkpoint_that_changed_in_its_place(command: Any, tmp_path: Path) -> None:
    folder, target = tmp_path / "model", tmp_path / "out.jsonl"
    shutil.copytree(tiny_folder(), folder)
    words = (*WORDS, "--model", str(folder), "--output", str(target))
    assert command(*words).exit_code == 0
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = max(name for name in tensors if "down_proj" in name)
    save_file(tensors | {name: tensors[name] * 1.01}, file, metadata={"format": "pt"})
    result = command(*words, "--resume")
    assert result.exit_code == 2
    assert "record 0 was made with weights " in result.stderr


def test_a_seed_of_dummy_weights(command: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "out.jsonl")
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "1+", "seed": 3}) + "\n")
    words = ("generate", "-i", str(source), "--device", "cpu", "--max-new-tokens", "3", *TINY)
    words = (*words, "--load-format", "dummy", "--output", target)
    assert command(*words, "--seed", "1").exit_code == 0
    result = command(*words, "--seed", "2", "--resume")
    assert result.exit_code == 2
    assert "record 0 was made with weights " in result.stderr


@pytest.mark.parametrize("value", [7, ["a"], {"a": 1}, True])
def test_an_odd_value_in_a_record(command: Any, tmp_path: Path, value: Any) -> None:
    target = tmp_path / "out.jsonl"
    assert command(*WORDS, *RANDOM, "--output", str(target)).exit_code == 0
    lines = [json.loads(line) | {"adapter_sha": value} for line in target.read_text().splitlines()]
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = command(*WORDS, *RANDOM, "--output", str(target), "--resume", "--quiet")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --resume: record 0 was made with adapter ")
