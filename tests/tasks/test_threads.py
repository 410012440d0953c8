"""A tiny model on a CPU is served on one thread, unless the user has decided otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from flexinfer.cli.main import app
from flexinfer.tasks.threads import SMALL, own_threads

SAID = "threads: 1 (a model this small is no faster on more"


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads(module: nn.Module | None) -> tuple[int, int]:
    """Return the notices and the threads within, and check that all is as before after it."""
    with own_threads(module) as said:
        found = len(said), torch.get_num_threads()
    assert torch.get_num_threads() == 2
    return found


def test_only_a_small_module_on_a_cpu_gets_one_thread() -> None:
    assert threads(nn.Linear(8, 8)) == (1, 1)
    assert threads(nn.Linear(SMALL, 1, bias=False, device="meta")) == (0, 2)
    assert threads(nn.Linear(8, 8, device="meta")) == (0, 2)
    assert threads(nn.Embedding(SMALL, 1, _weight=weight())) == (0, 2)
    assert threads(None) == (0, 2)


def weight() -> torch.Tensor:
    """A weight of many numbers that takes no memory."""
    return torch.zeros(1).expand(SMALL, 1)


def test_the_users_own_number_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads(nn.Linear(8, 8)) == (0, 2)


def test_threads_come_back_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), own_threads(nn.Linear(8, 8)):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "1+1="],
        [
            "bench",
            "--n-prompts",
            "1",
            "--n-rounds",
            "1",
            "--max-new-tokens",
            "2",
            "--prompt-length",
            "4:4",
        ],
    ],
)
def test_the_commands_say_so_and_do_so(words: list[str], monkeypatch: Any) -> None:
    import flexinfer.engine.engine as engine

    found = []
    real = engine.Engine.stream

    def stream(self: Any, *given: Any) -> Any:
        found.append(torch.get_num_threads())
        return real(self, *given)

    monkeypatch.setattr(engine.Engine, "stream", stream)
    line = [*words, "--model", "tiny-gemma4", "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, line, prog_name="flexinfer")
    document = json.loads(result.stdout)
    row = document["results"][0] if words[0] == "bench" else document
    assert result.stderr.count(SAID) == 1
    assert sum(SAID in line for line in row["notices"]) == 1
    assert set(found) == {1}
    assert torch.get_num_threads() == 2
