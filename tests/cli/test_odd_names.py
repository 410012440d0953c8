"""Names and numbers that no file or size can have: one line each, and exit code 2."""

from __future__ import annotations

from typing import Any

import pytest

LONG = "a" * 300
NINES = "9" * 5000
GENERATE = ("generate", "1+2=", "--device", "cpu", "--max-new-tokens", "2")
TINY = ("--model", "tiny-gemma4")
SMALL = ("bench", *TINY, "--device", "cpu", "--n-rounds", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*GENERATE, *TINY, "--adapter", f"random:{NINES}"], "the rank must be 1 or more, at most"),
        ([*GENERATE, *TINY, "--adapter", "random:" + "0" * 5000], "the rank must be 1 or more"),
        ([*GENERATE, *TINY, "--adapter", "~nosuchuser/x"], "there is no such folder"),
        ([*GENERATE, *TINY, "--adapter", LONG], "there is no such folder"),
        ([*GENERATE, *TINY, "--adapter", f"{LONG}/b"], "there is no such folder"),
        ([*GENERATE, *TINY, "--adapter", "a\udcffb"], "there is no such folder"),
        ([*GENERATE, "--model", "~nosuchuser/x"], "there is no such file or folder"),
        ([*GENERATE, "--model", "~nosuchuser"], "is no alias, folder or cached hub id"),
        ([*GENERATE, "--model", LONG], "is no alias, folder or cached hub id"),
        ([*GENERATE, "--model", f"{LONG}.gguf"], "there is no such file or folder"),
        ([*GENERATE, "--model", f"x/{LONG}"], "there is no such file or folder"),
        ([*GENERATE, "--model", "x/a--b"], "there is no such file or folder"),
        ([*GENERATE, "--model", "a/\udcffb"], "there is no such file or folder"),
        ([*GENERATE, *TINY, "--decode-kernel-options", "[" * 100_000], "is not JSON"),
        ([*GENERATE, *TINY, "--max-seq-length", NINES], "is too large"),
        ([*SMALL, "--max-batch-size", NINES], "--max-batch-size is '999"),
        ([*SMALL, "--prompt-length", NINES], "--prompt-length is '999"),
        ([*SMALL, "--prompt-length", "999999999999"], "--prompt-length is '999999999999'; allowed"),
        ([*SMALL, "--n-prompts", "99999999999"], "99999999999 prompts of up to"),
        ([*SMALL, "--max-batch-size", "1,999999999"], "999999999 prompts of up to 256 tokens"),
        (["verify-drift", *TINY, "--adapter", f"random:{NINES}"], "the rank must be 1 or more"),
    ],
)  # fmt: skip
def test_one_line_and_exit_2(command: Any, words: list[str], said: str) -> None:
    result = command(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert len(errors[0]) < 500


def test_a_long_word_of_a_complaint_is_cut(capsys: Any) -> None:
    from flexinfer.cli.terminal.failures import say_failure

    say_failure(f"--seed is {NINES}; allowed: less")
    assert capsys.readouterr().err == f"error: --seed is {'9' * 120}...; allowed: less\n"
