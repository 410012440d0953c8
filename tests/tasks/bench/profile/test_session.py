"""A profiler's session leaves nothing on the user's terminal but what somebody must know."""

from __future__ import annotations

import os

import pytest
import torch
from torch.profiler import ProfilerActivity

from flexinfer.tasks.bench.profile import session
from flexinfer.tasks.bench.profile.session import profiling


def test_a_session_says_nothing_and_has_its_events(capfd: pytest.CaptureFixture[str]) -> None:
    with profiling([ProfilerActivity.CPU]) as found:
        torch.ones(3) + 1
        os.write(2, b"USDT: of the block itself\n")
    assert any("add" in event.key for event in found.key_averages())
    assert capfd.readouterr().err == "USDT: of the block itself\n"


class Loud:
    """A profiler that tells of its start and complains at its end."""

    def __init__(self, activities: object) -> None:
        """Say nothing yet."""

    def start(self) -> None:
        os.write(2, b"USDT:1 profiler_start\nERROR: no buffers\n")

    def stop(self) -> None:
        os.write(2, b"half a line")
        raise RuntimeError("it broke")


def test_what_else_is_said_reaches_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "profile", Loud)
    with pytest.raises(RuntimeError, match="it broke"), profiling([]):
        pass
    os.write(2, b", and on\n")
    assert capfd.readouterr().err == "ERROR: no buffers\nhalf a line, and on\n"
