"""The command line in this process, over the fake engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from typer.testing import CliRunner

from flexinfer.cli.main import app
from tests.support.fake_engine import Stage, install


class Result(Protocol):
    """What a test reads of a finished command."""

    exit_code: int
    stdout: str
    stderr: str


Command = Callable[..., Result]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    install(monkeypatch, stage)
    return stage


@pytest.fixture
def command() -> Command:
    """Run `flexinfer WORDS...` and return exit code, stdout and stderr."""

    def run(*words: str, stdin: str | bytes = "") -> Any:
        result = CliRunner().invoke(app, list(words), input=stdin, prog_name="flexinfer")
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return run


@pytest.fixture
def generate(stage: Stage, command: Command) -> Command:
    """Run `flexinfer generate --model m WORDS...` over the fake engine."""
    return lambda *words, **more: command("generate", "--model", "m", *words, **more)
