"""The command line in this process, over the fake engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from typer.testing import CliRunner

from flexinfer.cli.main import app
from flexinfer.cli.terminal.signals import Terminated
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.bench import run as bench_task
from flexinfer.tasks.bench.compare.gate import Gate
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, BenchResult
from tests.support.fake_engine import Stage, install
from tests.support.processes import end_all


class Result(Protocol):
    """What a test reads of a finished command."""

    exit_code: int
    stdout: str
    stderr: str


Command = Callable[..., Result]


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    end_all()


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


ENDS = {
    "slow": KeyboardInterrupt(),
    "hung up": Terminated(),
    "broken": RuntimeError("an illegal access"),
}
"""What ends a run of a model after its first row."""
GATE = Gate(checked=4, agreed=4, noise=0.1, mean_logprob_gap=0.01, dtype="float32")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the measuring by a fixed report; return what it is asked."""
    asked: list[Any] = []

    def run(
        options: ModelOptions,
        engine: EngineConfig,
        config: BenchConfig,
        report: Any,
        notice: Callable[[str], None],
        debug: bool,
    ) -> BenchReport:
        asked[:] = [options, engine, config, debug]
        notice("attention: fake")
        row = BenchResult(
            backend="flex",
            model_name=options.model,
            lora_adapter=None,
            max_batch_size=4,
            max_seq_length=64,
            n_prompts=2,
            prompt_length="8",
            max_new_tokens=8,
            decode_tps_median=123.4,
            notices=("attention: fake", GATE.summary),
            gate=GATE,
            error="it broke" if options.model == "bad" else None,
        )
        return BenchReport(
            config={"bench": vars(config)},
            environment={},
            started_at="now",
            results=(row,),
            ended_by=ENDS.get(options.model),
        )

    monkeypatch.setattr(bench_task, "run_bench", run)
    return asked
