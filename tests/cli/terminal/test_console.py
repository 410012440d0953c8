"""Progress where nobody watches: a line every few seconds, and silence where it is asked for."""

from __future__ import annotations

import time

import pytest

from flexinfer.cli.terminal.console import INTERVAL_S, Console, print_data, say
from flexinfer.errors import WriteFailed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock that a test moves by setting its only value."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_line_every_few_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Console(quiet=False) as console:
        for done in range(1, 21):
            clock[0] += 1.0
            console.report("generate", done, 20)
            console.report("tokens", done * 8, 160)
        clock[0] += INTERVAL_S
        console.report("compile", 3, 0)
        console.report("compile", 4, 0)
    captured = capsys.readouterr()
    assert captured.err == "generate: 6/20\ngenerate: 11/20\ngenerate: 16/20\ncompile ...\n"
    assert captured.out == ""


def test_a_count_is_said_only_of_what_lasts(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(quiet=False)
    for turn in range(3):
        clock[0] += 10 * INTERVAL_S
        console.report("loading weights", 1, 101)
        clock[0] += INTERVAL_S - 1
        console.report("loading weights", 64, 101)
        if turn < 2:  # one ends, one is left in the middle and begins again
            console.report("loading weights", 101 - turn, 101)
    assert capsys.readouterr().err == ""
    clock[0] += 1
    console.report("loading weights", 100, 101)
    assert capsys.readouterr().err == "loading weights: 100/101\n"


def test_quiet_is_silent(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    clock[0] += 100.0
    console.report("generate", 1, 2)
    console.notice("attention: flex")
    assert capsys.readouterr() == ("", "")


def test_markup_in_a_notice_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    Console(quiet=False).notice("options: [bold] {'a': [1]}")
    assert capsys.readouterr().err == "options: [bold] {'a': [1]}\n"


class Full:
    """A stream of a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        """Do nothing."""


def test_a_full_stderr_harms_nobody_and_a_full_stdout_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr", Full())
    say("hello")
    monkeypatch.setattr("sys.stdout", Full())
    with pytest.raises(WriteFailed, match="standard output: No space left"):
        print_data("data")
