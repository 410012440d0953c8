"""Defaults: an adapter's follow the model, a step's size and length the data; told where odd."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from flexinfer.cli.arguments.grpo_options import BatchFlags, OptimizerFlags
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.recipes import GENERAL, OF_BOTH, OF_MODEL, recipe, told

OPEN = vars(GrpoConfig())


def test_what_follows_the_model_and_what_the_data() -> None:
    assert recipe("qwen3-4b", "arithmetic") == GENERAL
    other = GrpoConfig(dataset="gsm8k").filled("Tiny-Gemma4")
    assert (other.learning_rate, other.lora_rank, other.lora_alpha) == (2.5e-3, 8, 16)
    assert (other.completions_per_step, other.max_completion_length) == (16, 512)
    assert other.gradient_checkpointing is None
    sums = GrpoConfig(dataset="Arithmetic").filled("tiny-gemma4")
    assert (sums.learning_rate, sums.lora_rank) == (2.5e-3, 8)
    assert (sums.completions_per_step, sums.max_completion_length) == (256, 8)


def test_unusual_defaults_are_told_as_they_would_be_given() -> None:
    assert told("qwen3-4b", "gsm8k", OPEN) == ()
    assert told("tiny-gemma4", "gsm8k", OPEN) == (
        "defaults of tiny-gemma4: --learning-rate 0.0025 --lora-rank 8 --warmup-steps 5",
    )
    (sums,) = told("tiny-gemma4", "arithmetic", OPEN)
    assert sums.startswith("defaults of tiny-gemma4 on arithmetic: --learning-rate 0.0025 ")
    assert sums.endswith(" --max-completion-length 8 --no-gradient-checkpointing")
    given = vars(GrpoConfig(learning_rate=1e-3, warmup_steps=0, lora_rank=4))
    assert told("tiny-gemma4", "gsm8k", given) == ()


@pytest.mark.parametrize("flags", [BatchFlags, OptimizerFlags])
def test_help_tells_them(flags: Any) -> None:
    hints = get_type_hints(flags, include_extras=True)
    for name in {field.name for field in fields(flags)} & set(GENERAL):
        help_ = hints[name].__metadata__[0].help
        usual = re.search(r"efault: ([^;).]+(?:\.\d[^;).]*)?)", help_)
        assert usual is not None, help_
        assert float(usual[1]) == GENERAL[name]
        for key, own in (*OF_MODEL.items(), *OF_BOTH.items()):
            who = key if isinstance(key, str) else " on ".join(key)
            found = re.search(rf"{who}: ([\d.e-]*\d)", help_)
            assert (None if found is None else float(found[1])) == own.get(name), help_
