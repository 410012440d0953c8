"""Each option is declared once, takes the spellings of the contract and reaches its setting."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from flexinfer.cli.completions import read_commands
from flexinfer.config import EngineConfig, SamplingParams
from tests.support.fake_engine import Stage

COMMANDS = {command.name: command for command in read_commands()}
MODEL = (
    "--model --load-format --adapter --lora-adapter --lora-mode --load-in-4bit --dtype --device "
    "--chat-template"
)
ENGINE = (
    "--max-batch-size --max-seq-length --page-size --kv-memory --cuda-graphs --no-cuda-graphs "
    "--capture-cudagraph --fa4-prefill --no-fa4-prefill --prefill-kernel-options "
    "--decode-kernel-options --attention --batch-invariant --seed"
)
COMMON = "--json --quiet --debug --help"
CONTRACT = {
    "generate": f"{MODEL} {ENGINE} {COMMON} --input --output --format --resume --system "
    "--max-new-tokens --temperature --top-p --top-k --min-p --repetition-penalty --stop "
    "--ignore-eos -n --logprobs",
    "bench": f"{MODEL} {ENGINE} {COMMON} --backend --n-prompts --n-rounds --max-new-tokens "
    "--prompt-length --ignore-eos --baseline --fail-below --stats-path --report --format",
    "verify-drift": f"{MODEL} {ENGINE} {COMMON} --cycles --noise-scale",
    "doctor": f"{COMMON} --model --mode --check --list-checks --strict",
    "": "--version --quiet --debug --help",
}


@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_is_kept_and_every_option_explained(name: str) -> None:
    options = COMMANDS[name].options
    spellings = [spelling for option in options for spelling in option.names]
    assert set(CONTRACT[name].split()) <= set(spellings)
    assert len(spellings) == len(set(spellings)), "an option is declared twice"
    for option in options:
        assert option.help.endswith("."), option.names
        assert len(option.help) < 90, option.names


def test_help_says_the_default_of_what_is_decided_later() -> None:
    from flexinfer.engine.setup import PAGE_SIZE

    helps = {name: o.help for o in COMMANDS["generate"].options for name in o.names}
    params = SamplingParams()
    for name in ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        own = f"(default: the model's own, else {getattr(params, name):g})."
        assert helps["--" + name.replace("_", "-")].endswith(own)
    assert helps["-n"].endswith(f"(default: {params.n}).")
    pages = f"(default: {PAGE_SIZE['cuda']}, on a CPU {PAGE_SIZE['cpu']})."
    assert helps["--page-size"].endswith(pages)
    assert f"(default: {EngineConfig().prefill_tokens}" in helps["--prefill-tokens"]


def test_every_sampling_parameter_has_an_option() -> None:
    spellings = {s for option in COMMANDS["generate"].options for s in option.names}
    names = {field.name for field in fields(SamplingParams)}
    assert {"--" + name.replace("_", "-") for name in names} <= spellings


def opened(generate: Any, stage: Stage, *words: str) -> EngineConfig:
    result = generate("a", "--max-new-tokens", "4", *words)
    assert result.exit_code == 0, result.stderr
    return stage.engines[-1].config


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--kv-memory", "8GiB"], "kv_memory", 8 * 2**30),
        (["--kv-memory", "1.5GB"], "kv_memory", 1_500_000_000),
        (["--max-seq-length", "4k"], "max_seq_length", 4000),
        (["--prefill-tokens", "2KiB"], "prefill_tokens", 2048),
        (["--page-size", "32"], "page_size", 32),
        (["--cuda-graphs"], "cuda_graphs", True),
        (["--capture-cudagraph"], "cuda_graphs", True),
        (["--no-capture-cudagraph"], "cuda_graphs", False),
        ([], "cuda_graphs", None),
        (["--no-fa4-prefill"], "fa4_prefill", False),
        ([], "fa4_prefill", None),
        (["--attention", "dense"], "attention", "dense"),
        (["--batch-invariant"], "batch_invariant", True),
        (["--seed", "9"], "seed", 9),
        (
            ["--decode-kernel-options", '{"num_warps": 4}'],
            "decode_kernel_options",
            {"num_warps": 4},
        ),
        (
            ["--prefill-kernel-options", '{"num_warps": 1}'],
            "prefill_kernel_options",
            {"num_warps": 1},
        ),
        ([], "prefill_kernel_options", {}),
    ],
)
def test_engine_options(
    generate: Any, stage: Stage, words: list[str], name: str, value: object
) -> None:
    assert getattr(opened(generate, stage, *words), name) == value


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--load-format", "dummy"], "load_format", "dummy"),
        (["--adapter", "random:8"], "adapter", "random:8"),
        (["--lora-adapter", "dir"], "adapter", "dir"),
        (["--lora-mode", "runtime"], "lora_mode", "runtime"),
        (["--load-in-4bit"], "load_in_4bit", True),
        (["--dtype", "float16"], "dtype", "float16"),
        (["--device", "cpu"], "device", "cpu"),
        (["--chat-template", "grpo"], "chat_template", "grpo"),
        (["--seed", "9"], "seed", 9),
    ],
)
def test_model_options(
    generate: Any, stage: Stage, words: list[str], name: str, value: object
) -> None:
    opened(generate, stage, *words)
    assert getattr(stage.options[-1], name) == value


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--max-new-tokens", "4k"], "max_new_tokens", 4000),
        (["--max-new-tokens", "7"], "max_new_tokens", 7),
        (["--temperature", "0.5"], "temperature", 0.5),
        (["--top-p", "0.9"], "top_p", 0.9),
        (["--top-k", "0"], "top_k", 0),
        (["--min-p", "0.1"], "min_p", 0.1),
        (["--repetition-penalty", "1.1"], "repetition_penalty", 1.1),
        (["--stop", "x", "--stop", "y"], "stop", ["x", "y"]),
        (["--ignore-eos"], "ignore_eos", True),
        (["--no-ignore-eos"], "ignore_eos", False),
        (["-n", "3"], "n", 3),
        (["--logprobs"], "logprobs", True),
    ],
)
def test_sampling_options(
    generate: Any, stage: Stage, words: list[str], name: str, value: object
) -> None:
    stage.generation_config = {"do_sample": True, "top_k": 7, "temperature": 0.7, "top_p": 0.7}
    document = json.loads(generate("a", "--json", *words).stdout)
    assert document["config"]["sampling"][name] == value
    assert document["results"][0]["sampling"][name] == value
