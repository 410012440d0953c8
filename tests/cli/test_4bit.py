"""`--load-in-4bit` through every command, on the embedded model (CPU)."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("bitsandbytes")

MODEL = ("--model", "tiny-gemma4", "--device", "cpu", "--load-in-4bit")
BENCH = ("bench", *MODEL, "--n-prompts", "3", "--max-new-tokens", "6", "--n-rounds", "1", "--json")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [[], ["merged"], ["runtime"]])
def test_bench_checks_its_output(command: Any, dtype: str, lora: list[str]) -> None:
    words = ("--adapter", "random:4", "--lora-mode", *lora) if lora else ()
    result = command(*BENCH, "--prompt-length", "8:20", "--dtype", dtype, *words)
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["results"]
    assert row["gate"]["problem"] is None
    assert row["gate"]["agreed"] == row["gate"]["checked"] > 5
    assert row["gate"]["noise"] > 0
