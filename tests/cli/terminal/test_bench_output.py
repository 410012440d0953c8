"""Where the figures of `flexinfer bench` go: stdout, the files beside it, and what fails there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flexinfer.cli.terminal import bench_output
from flexinfer.errors import WriteFailed


def test_stats_go_to_a_file_beside_the_table(
    command: Any, asked: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "stats.json"
    assert "123.4" in command("bench", "-m", "m", "--stats-path", str(path)).stdout
    assert json.loads(path.read_text())["schema_version"] == 1


def test_figures_are_printed_before_the_file_fails(command: Any, asked: list[Any]) -> None:
    result = command("bench", "-m", "m", "--stats-path", "/dev/full")
    assert result.exit_code == 1
    assert "123.4" in result.stdout
    assert "error: --stats-path /dev/full: No space left on device" in result.stderr


def test_the_file_is_written_though_stdout_is_full(
    command: Any, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(text: str) -> None:
        if text:
            raise WriteFailed("cannot write standard output: No space left on device")

    monkeypatch.setattr(bench_output, "print_data", full)
    path = tmp_path / "stats.json"
    assert command("bench", "-m", "m", "--stats-path", str(path)).exit_code == 1
    assert json.loads(path.read_text())["results"]


def test_the_charts_are_written_though_the_other_file_fails(
    command: Any, asked: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "report.png"
    result = command("bench", "-m", "m", "--stats-path", "/dev/full", "--report", str(path))
    assert result.exit_code == 1
    assert "error: --stats-path /dev/full" in result.stderr
    assert path.read_bytes().startswith(b"\x89PNG")


def test_each_file_that_fails_is_told(command: Any, asked: list[Any], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.mkdir()
    words = ("--stats-path", "/dev/full", "--report", str(report))
    result = command("bench", "-m", "broken", *words)
    assert result.exit_code == 1
    assert "123.4" in result.stdout
    stats, page, ended, *hint = result.stderr.splitlines()[1:]
    assert stats == "error: --stats-path /dev/full: No space left on device"
    assert page.startswith(f"error: --report {report}")
    assert ended == "error: internal error: RuntimeError: an illegal access"
    assert hint == ["hint: --debug shows the traceback"]


def test_what_ended_the_run_is_said_after_the_figures(
    command: Any, asked: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "stats.json"
    result = command("bench", "-m", "broken", "--stats-path", str(path))
    assert result.exit_code == 1
    assert "123.4" in result.stdout
    assert "an illegal access" in result.stderr
    assert json.loads(path.read_text())["results"]


def test_a_profile_leaves_its_trace_somewhere(command: Any, asked: list[Any]) -> None:
    command("bench", "-m", "m", "--profile")
    assert asked[2].trace_path == "flexinfer-trace.json.gz"
    command("bench", "-m", "m", "--profile", "--trace-path", "mine.json")
    assert asked[2].trace_path == "mine.json"
    command("bench", "-m", "m")
    assert asked[2].trace_path is None
    result = command("bench", "-m", "m", "--trace-path", "mine.json")
    assert result.exit_code == 2
    assert "error: --trace-path has no trace to take\nhint: give --profile too" in result.stderr


def test_a_trace_that_nobody_named_says_how_to_name_it(
    command: Any, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flexinfer-trace.json.gz").mkdir()
    result = command("bench", "-m", "m", "--profile")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: --profile's trace flexinfer-trace.json.gz is a folder\n"
        "hint: give --trace-path FILE\n"
    )
    assert not asked
    assert command("bench", "-m", "m", "--profile", "--trace-path", "mine.json").exit_code == 0
