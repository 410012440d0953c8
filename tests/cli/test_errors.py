"""Errors: one `error:` line, at most one `hint:` line, the exit code, no traceback."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory, UsageError, WriteFailed
from tests.support.fake_engine import Stage


def check_form(stderr: str) -> list[str]:
    lines = stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 2
    return lines


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["genrate", "a"], "no such command 'genrate'", "did you mean generate?"),
        (["generate", "a", "--modle", "x"], "no such option: --modle", "--model"),
        (["--bogus"], "no such option: --bogus", None),
        (["generate", "a", "--top-k", "many"], "error: --top-k is 'many'; allowed: a whole number",
         "hint: flexinfer generate --help"),
        (["bench", "--temperature", "hot"], "error: --temperature is 'hot'; allowed: a number",
         "hint: flexinfer bench --help"),
        (["generate", "a", "-n", "1.5"], "error: -n is '1.5'; allowed: a whole number", None),
        (["generate", "a", "--max-new-tokens", "long"], "'long' is not a size", "4k"),
        (["generate", "a", "--max-new-tokens", "-1"], "--max-new-tokens is -1; allowed: 1", None),
        (["generate", "a", "--max-new-tokens", "2147483648"], "allowed: 1 to 2147483647", None),
        (["bench", "--max-new-tokens", "4G"], "--max-new-tokens is 4000000000; allowed: 1", None),
        (["generate", "a", "--bogus"], "no such option", "hint: flexinfer generate --help"),
        (["generate", "a", "--page-size"], "--page-size", "flexinfer generate --help"),
        (["generate", "-m", "m", "a", "--top-k", "-5"], "allowed: 0 or -1 (off)", None),
        (["generate", "-m", "m", "a", "--dtype", "int8"], "auto, bfloat16, float16", None),
        (["generate", "-m", "m", "a", "--kv-memory", "8XB"], "--kv-memory '8XB'", "8GiB"),
        (["generate", "-m", "m", "a", "--decode-kernel-options", "{"], "not JSON", None),
        (["generate", "-m", "m", "a", "--prefill-kernel-options", "[1]"], "JSON object", "{"),
        (["bench", "-m", "m", "--backend", "flx"], "'flx' is unknown", "did you mean flex?"),
        (["bench", "-m", "m", "--format", "xml"], "table, json, csv, md", None),
        (["doctor", "--check", "torsh"], "'torsh' is not known", "did you mean torch?"),
        (["doctor", "--mode", "fp8"], "bf16, lora, 4bit, grpo", None),
        (["generate"], "no prompt", "flexinfer generate"),
        (["generate"], "no prompt", "--input - for standard input"),
        (["generate", "-m", "m", "-"], "PROMPT is -", "--input - reads JSON Lines"),
    ],
)  # fmt: skip
def test_wrong_usage(
    command: Any, stage: Stage, words: list[str], said: str, hint: str | None
) -> None:
    result = command(*words)
    lines = check_form(result.stderr)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in lines[0]
    assert hint is None or hint in lines[1]


@pytest.mark.parametrize("words", [[], ["a"], ["a", "--input", "x"]])
def test_an_unknown_model_is_named_whatever_else_is_missing(command: Any, words: list[str]) -> None:
    result = command("generate", "--model", "nonsense", *words)
    lines = check_form(result.stderr)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--model 'nonsense' is no alias" in lines[0]
    assert "tiny-gemma4" in lines[1]


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("--model 'x' is no alias", hint="nearest: y"), 2, "no alias"),
        (EnvironmentUnfit("no CUDA"), 3, "no CUDA"),
        (ModuleNotFoundError("No module", name="peft.tuners"), 3, "the package peft is missing"),
        (NotEnoughMemory("too small"), 4, "too small"),
        (MemoryError(), 4, "out of memory"),
        (OutOfMemoryError("CUDA out of memory.\nTried to allocate 9 GiB"), 4, "Tried"),
        (WriteFailed("cannot write x"), 1, "cannot write x"),
        (PermissionError(13, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (ZeroDivisionError("no"), 1, "internal error: ZeroDivisionError: no"),
    ],
)
def test_each_kind_of_error_has_its_code(
    generate: Any, stage: Stage, error: Exception, code: int, said: str
) -> None:
    stage.load_error = error
    result = generate("a", "--quiet")
    assert result.exit_code == code
    assert said in check_form(result.stderr)[0]
    assert result.stdout == ""


def test_debug_shows_the_traceback(generate: Any, stage: Stage) -> None:
    stage.load_error = ZeroDivisionError("no")
    assert "Traceback" not in generate("a").stderr
    assert "Traceback" not in generate("--quiet", "--", "--debug").stderr
    result = generate("a", "--debug")
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-2].startswith("error: ")


def test_options_before_the_command_hold_for_it(command: Any, stage: Stage) -> None:
    assert command("--quiet", "generate", "a", "-m", "m").stderr == ""
    assert command("--json", "generate", "a", "-m", "m").stdout.startswith("{")
    stage.load_error = ZeroDivisionError("no")
    assert "Traceback" in command("--debug", "generate", "a", "-m", "m").stderr
