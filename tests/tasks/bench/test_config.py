"""What a user may ask bench for, and what is refused with the flag's name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.bench.run import BenchConfig, parse_batch_sizes, parse_new_tokens


def test_the_defaults_are_the_seed_workload() -> None:
    config = BenchConfig()
    assert (config.n_prompts, config.n_rounds, config.max_new_tokens) == (64, 5, 512)
    assert config.lengths == (64, 256)
    assert config.ignore_eos
    assert config.temperature == 1.0
    assert config.backends == ("flex",)
    assert (config.n_samples, config.gate) == (1, True)


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--n-prompts", {"n_prompts": 0}),
        ("--n-samples", {"n_samples": 0}),
        ("--n-rounds", {"n_rounds": 0}),
        ("--max-new-tokens", {"max_new_tokens": 0}),
        ("--prompt-length", {"prompt_length": "0:4"}),
        ("--prompt-length", {"prompt_length": "9:4"}),
        ("--prompt-length", {"prompt_length": "-4"}),
        ("--prompt-length", {"prompt_length": "4:5:6"}),
        ("--prompt-length", {"prompt_length": ""}),
        ("--backend", {"backends": ()}),
        ("--backend", {"backends": ("flex", "flex")}),
        ("--backend", {"backends": ("flexi",)}),
        ("--max-batch-size", {"batch_sizes": (8, 0)}),
        ("--max-batch-size", {"batch_sizes": (8, 8)}),
        ("--temperature", {"temperature": -0.1}),
        ("--temperature", {"temperature": math.inf}),
        ("--temperature", {"temperature": math.nan}),
        ("--seed", {"seed": -1}),
        ("--fail-below", {"fail_below": 5.0}),
        ("--report", {"report_file": "out.pdf"}),
        ("--report", {"report_file": "html"}),
        ("--report", {"report_file": ""}),
        ("--fail-below", {"fail_below": -1.0, "baseline": "x.json"}),
        ("--fail-below", {"fail_below": 100.0, "baseline": "x.json"}),
    ],
)
def test_wrong_values_are_exit_2_with_the_flag(flag: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        BenchConfig(**given)
    assert caught.value.message.startswith(flag)


def test_a_back_end_without_its_package_is_exit_3() -> None:
    with pytest.raises(EnvironmentUnfit, match="vllm is not installed") as caught:
        BenchConfig(backends=("vllm",))
    said = "pip install -e '.[vllm]' in the checkout of flexinfer"
    assert caught.value.hint == said
    assert BenchConfig(backends=("flex", "vllm")), "among several it becomes a row of its own"
    with pytest.raises(UsageError, match="'vlm' is unknown"):
        BenchConfig(backends=("flex", "vlm"))


@pytest.mark.parametrize(
    ("text", "lengths"), [("64:256", (64, 256)), ("128", (128, 128)), (" 5 : 7 ", (5, 7))]
)
def test_prompt_lengths(text: str, lengths: tuple[int, int]) -> None:
    assert BenchConfig(prompt_length=text).lengths == lengths


def test_a_report_of_another_kind_is_told_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"--report is 'out.pdf'; allowed: .*\.html or \.png"):
        BenchConfig(report_file="out.pdf")


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ({}, {1: 64, 256: 64}),
        ({"batch_sizes": (8,)}, {8: 64}),
        ({"batch_sizes": (8, 32)}, {8: 8, 32: 32}),
        ({"batch_sizes": (1, 8, 20), "n_samples": 8}, {1: 1, 8: 1, 20: 3}),
        ({"batch_sizes": (8, 32), "n_prompts": 5}, {8: 5, 32: 5}),
    ],
)
def test_prompts_follow_the_batch_sizes_of_a_sweep(
    given: dict[str, Any], prompts: dict[int, int]
) -> None:
    config = BenchConfig(**given)
    assert {size: config.prompts_at(size) for size in prompts} == prompts


@pytest.mark.parametrize(
    ("prompts", "samples", "size"), [(None, 1, 64), (8, 1, 8), (8, 8, 64), (300, 1, 256)]
)
def test_a_batch_size_that_is_not_given_holds_the_workload(
    prompts: int | None, samples: int, size: int
) -> None:
    assert BenchConfig(n_prompts=prompts, n_samples=samples).own_batch_size == size


def test_batch_sizes_from_text() -> None:
    assert parse_batch_sizes("64") == (64,)
    assert parse_batch_sizes("1, 8,32") == (1, 8, 32)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1;2", "-1", "1.5", "²"])
def test_batch_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--max-batch-size"):
        parse_batch_sizes(text)


def test_lengths_and_new_tokens_are_swept_together() -> None:
    config = BenchConfig(prompt_length="8, 16:32", new_tokens=(4, 8), batch_sizes=(1, 2))
    works = [(work.prompt_length, work.max_new_tokens) for work in config.workloads]
    assert works == [("8", 4), ("8", 8), ("16:32", 4), ("16:32", 8)]
    assert {work.workloads for work in config.workloads} == {(w,) for w in config.workloads}
    assert config.rows == 8
    assert BenchConfig().workloads == (BenchConfig(),)
    assert parse_new_tokens("128,4k") == (128, 4000)


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--prompt-length", {"prompt_length": "8,8"}),
        ("--prompt-length", {"prompt_length": "8,x"}),
        ("--max-new-tokens", {"new_tokens": (8, 8)}),
        ("--max-new-tokens", {"new_tokens": (8, 0)}),
        ("--weights", {"weights": ("plain", "odd")}),
        ("--weights", {"weights": ("plain", "plain")}),
    ],
)
def test_a_sweep_that_cannot_be_is_exit_2(flag: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        BenchConfig(**given)
    assert caught.value.message.startswith(flag)
