"""`flexinfer generate` on the embedded model and the real engine (CPU, fp32)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

WORDS = ("generate", "--model", "tiny-gemma4", "--device", "cpu", "--max-new-tokens", "8")


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_sum_is_answered_by_a_number(command: Any) -> None:
    result = command(*WORDS, "12+30=")
    assert result.exit_code == 0
    assert result.stdout.strip().lstrip("-").isdigit()
    for word in ("device: cpu", "dtype: float32", "attention: ", "KV cache: ", "LoRA: "):
        assert word in result.stderr


def test_a_resumed_run_equals_a_whole_one(command: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    words = (*WORDS, "1+2=", "30-4=", "5+5=", "--temperature", "2", "--seed", "3", "-n", "2")
    words = (*words, "--logprobs", "--output", str(target))
    assert command(*words).exit_code == 0
    whole = target.read_text()
    lines = whole.splitlines(keepends=True)
    target.write_text(lines[0] + lines[2][:-20])
    assert command(*words, "--resume").exit_code == 0
    for before, after in zip(records(whole), records(target.read_text()), strict=True):
        for one, other in zip(before["outputs"], after["outputs"], strict=True):
            assert one["token_ids"] == other["token_ids"]
            assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-4)


def test_prompts_around_the_limit_among_good_ones(command: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    prompts = [[65] * length for length in (23, 24, 25)] + [[65, 66]]
    asked = [{"prompt_token_ids": ids} for ids in prompts] + [{"prompt": ""}]
    source.write_text("".join(json.dumps(line) + "\n" for line in asked))
    result = command(*WORDS, "--input", str(source), "--max-seq-length", "24", "--ignore-eos")
    lines = records(result.stdout)
    assert result.exit_code == 1
    assert [line["id"] for line in lines] == [0, 1, 2, 3, 4]
    assert ["error" in line for line in lines] == [False, True, True, False, True]
    assert "--max-seq-length 24" in lines[1]["error"]
    assert [len(line["outputs"][0]["token_ids"]) for line in (lines[0], lines[3])] == [1, 8]


def test_room_that_a_request_lacks_is_said(command: Any) -> None:
    words = (*WORDS, "12+30=", "--chat-template", "none", "--ignore-eos", "--format", "jsonl")
    result = command(*words, "--max-seq-length", "10")
    (record,) = records(result.stdout)
    room = 10 - len(record["prompt_token_ids"])
    assert (result.exit_code, len(record["outputs"][0]["token_ids"])) == (0, room)
    said = f"--max-seq-length 10 leaves room for {room} of the 8 new tokens asked (request 0)"
    assert result.stderr.splitlines().count(said) == 1
    late = command(*(word for word in words if word not in ("--max-new-tokens", "8")),
                   "--max-seq-length", "10")  # fmt: skip
    said = f"--max-seq-length 10 ended request 0 early: {room} of up to 256 new tokens"
    assert late.stderr.splitlines().count(said) == 1


def test_samples_differ_where_top_k_is_off(command: Any) -> None:
    words = (*WORDS, "1+1=", "-n", "16", "--temperature", "2", "--format", "jsonl")
    (off,) = records(command(*words, "--top-k", "0").stdout)
    (one,) = records(command(*words, "--top-k", "1").stdout)
    assert len({tuple(sample["token_ids"]) for sample in off["outputs"]}) > 1
    assert len({tuple(sample["token_ids"]) for sample in one["outputs"]}) == 1


def test_a_stop_string_ends_the_text_before_it(command: Any) -> None:
    words = (*WORDS, "12+30=", "--format", "jsonl", "--logprobs")
    (whole,) = records(command(*words).stdout)
    text = whole["outputs"][0]["text"]
    (cut,) = records(command(*words, "--stop", text[1:]).stdout)
    sample = cut["outputs"][0]
    assert (sample["text"], sample["stop"]) == (text[:1], text[1:])
    assert len(sample["logprobs"]) == len(sample["token_ids"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--model", "tiny-gema4"], 2, "nearest alias: tiny-gemma4"),
        (["--kv-memory", "1KiB"], 4, "--kv-memory"),
        (["--device", "cuda"], 3, "CUDA"),
        (["--cuda-graphs"], 3, "--cuda-graphs"),
        (["--adapter", "missing-folder"], 2, "--adapter"),
    ],
)
def test_what_cannot_run_is_said(command: Any, words: list[str], code: int, said: str) -> None:
    import torch

    if torch.cuda.is_available() and code == 3:
        pytest.skip("a CUDA device is here")
    result = command(*WORDS, "1+1=", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr
