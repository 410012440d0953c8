"""What training shows: a line a step to a log, rows and a bar on a terminal, nothing when quiet."""

from __future__ import annotations

import io
import re
import sys

import pytest

from flexinfer.cli.terminal.grpo_progress import ROWS, GrpoProgress
from tests.support.steps import made_step


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Take stderr's place: 80 columns of a terminal that can move its cursor, no colours."""
    screen = Terminal()
    for name, value in (("COLUMNS", "80"), ("LINES", "40"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def seen(screen: Terminal) -> str:
    """What is left on the screen: the live part erased itself line by line."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|.|\n", screen.getvalue()):
        if part.startswith("\x1b["):
            number, kind = part[2:-1], part[-1]
            row -= int(number or 1) if kind == "A" else 0
            if kind == "K":
                lines[row] = "" if number == "2" else lines[row][:column]
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        else:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return "\n".join(line.rstrip() for line in lines).rstrip()


def test_a_log_gets_one_line_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with GrpoProgress(quiet=False, max_steps=3) as progress:
        progress.notice("device: cpu [bold]")
        for step in (1, 2):
            progress.report("generate", 1, 8)
            progress.add(made_step(step))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "device: cpu [bold]"
    assert [re.match(r"step \d/3: reward 0.50\d, ", line) is not None for line in lines[1:]] == [
        True,
        True,
    ]


def test_quiet_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = watched(monkeypatch)
    with GrpoProgress(quiet=True, max_steps=3) as progress:
        progress.notice("device: cpu")
        progress.report("generate", 1, 8)
        progress.add(made_step(1))
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_a_terminal_keeps_the_rows_and_loses_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = watched(monkeypatch)
    with GrpoProgress(quiet=False, max_steps=30) as progress:
        progress.notice("device: cpu [bold]")
        progress.report("generate", 3, 8)
        progress.add(made_step(1, kl=0.25))
        progress.report("train [x]", 1, 2)
        progress.add(made_step(2))
    raw, left = terminal.getvalue(), seen(terminal).splitlines()
    assert "2/30" in raw
    assert "━" in raw
    assert left[0] == "device: cpu [bold]"
    assert left[1].split() == [
        "step", "reward", "kl", "gap", "mean", "length", "clipped", "generate", "refresh", "train",
        "rollout",
    ]  # fmt: skip
    assert left[2].split() == ["%", "s", "s", "s", "tok/s"]
    assert [line.split()[:3] for line in left[3:]] == [
        ["1", "0.501", "2.5e-01"],
        ["2", "0.502", "-"],
    ]
    assert left[3].split()[-1] == "1,820"
    assert capsys.readouterr().out == ""


def test_what_is_being_done_stands_behind_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with GrpoProgress(quiet=False, max_steps=30) as progress:
        progress.report("generate [x]", 3, 8)
        assert "generate [x] 3/8" in terminal.getvalue()
        assert "0/30" in terminal.getvalue()
        for done in range(1000):
            progress.report("decode", done, 1000)
        assert terminal.getvalue().count("decode") < 200


def test_no_row_is_lost_and_each_table_has_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    count = 2 * ROWS + 3
    with GrpoProgress(quiet=False, max_steps=count) as progress:
        for step in range(1, count + 1):
            progress.add(made_step(step))
    left = seen(terminal).splitlines()
    numbers = [int(line.split()[0]) for line in left if line.split()[0].isdigit()]
    assert numbers == list(range(1, count + 1))
    assert sum("reward" in line for line in left) == 3
    assert max(map(len, left)) <= 80


def test_an_error_leaves_the_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)

    def interrupted() -> None:
        with GrpoProgress(quiet=False, max_steps=9) as progress:
            progress.add(made_step(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "0.501" in seen(terminal).splitlines()[-1]
