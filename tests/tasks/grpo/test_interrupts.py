"""Signals wait while a step is being counted, and come through after it; or while one is saved."""

from __future__ import annotations

import random
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flexinfer.errors import WriteFailed
from flexinfer.tasks.grpo.training.interrupts import RandomState, StepBoundary, undisturbed

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_a_signal_between_steps_comes_at_once() -> None:
    boundary = StepBoundary()
    boundary.on_pre_optimizer_step()
    boundary.on_step_end()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_within_an_optimizer_step_waits_for_its_end() -> None:
    boundary, counted = StepBoundary(), 0
    before = signal.getsignal(signal.SIGINT)
    boundary.on_pre_optimizer_step()
    signal.raise_signal(signal.SIGINT)
    counted += 1
    with pytest.raises(KeyboardInterrupt):
        boundary.on_step_end()
    assert counted == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_ignored_hides_no_interruption() -> None:
    """As under nohup: SIGHUP comes after Ctrl-C, within the same step."""
    boundary, before = StepBoundary(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    boundary.on_pre_optimizer_step()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        boundary.on_step_end()
    assert signal.signal(signal.SIGHUP, before) is signal.SIG_IGN


def test_handlers_are_put_back_where_the_optimizer_fails() -> None:
    boundary = StepBoundary()
    before = signal.getsignal(signal.SIGINT)

    def fail() -> None:
        with boundary.saving(trainer=None):
            boundary.on_pre_optimizer_step()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert signal.getsignal(signal.SIGINT) is before


def test_every_generator_is_restored() -> None:
    state = RandomState.now()
    first = random.random(), np.random.random(), float(torch.rand(()))
    state.restore()
    assert (random.random(), np.random.random(), float(torch.rand(()))) == first


def test_what_is_saved_is_the_state_after_the_last_whole_step() -> None:
    """A step that was broken off may have drawn numbers already: a resumed one draws them again."""
    boundary, saved = StepBoundary(), list[float]()
    state = SimpleNamespace(global_step=3)
    trainer = SimpleNamespace(
        state=state, model=None, _save_checkpoint=lambda model, trial: saved.append(random.random())
    )
    boundary.on_step_end()
    expected = RandomState.now()

    def broken_off() -> None:
        with boundary.saving(trainer):
            random.random()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="step 3 is saved"):
        broken_off()
    expected.restore()
    assert saved == [random.random()]


class Saved:
    """A trainer at step 3 whose checkpoint takes two writes, with signals between them."""

    def __init__(self, *signals: int) -> None:
        self.state, self.model = SimpleNamespace(global_step=3), None
        self.args = SimpleNamespace(world_size=1, output_dir="nowhere")
        self.written: list[str] = []
        self.signals = signals

    def _save_checkpoint(self, model: None, trial: None) -> None:
        self.written.append("weights")
        for number in self.signals:
            signal.raise_signal(number)
        self.written.append("state")


@pytest.mark.parametrize("signals", [(signal.SIGINT,), ALL])
@pytest.mark.parametrize("why", [KeyboardInterrupt, WriteFailed("the disk is full")])
def test_a_signal_while_a_step_is_saved_does_not_cut_it(
    why: BaseException, signals: tuple[int, ...]
) -> None:
    said = list[str]()
    boundary, trainer = StepBoundary(said.append), Saved(*signals)
    before = [signal.getsignal(number) for number in ALL]
    boundary.on_step_end()

    def broken_off() -> None:
        with boundary.saving(trainer):
            raise why

    with pytest.raises((KeyboardInterrupt, WriteFailed)) as ended:
        broken_off()
    assert trainer.written == ["weights", "state"]
    assert "step 3 is saved" in f"{ended.value} {getattr(ended.value, 'hint', '')}"
    assert said == ["saving step 3; a further Ctrl-C waits until it is written"] * (
        ended.type is KeyboardInterrupt
    )
    assert before == [signal.getsignal(number) for number in ALL]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_could_not_be_saved_is_said() -> None:
    boundary, trainer = StepBoundary(), Saved()
    boundary.on_step_end()

    def full(*given: Any, **more: Any) -> None:
        raise WriteFailed("no checkpoint in run: no space is left on its disk")

    def broken_off() -> None:
        with boundary.saving(trainer):
            raise KeyboardInterrupt

    trainer._save_checkpoint = full
    with pytest.raises(WriteFailed, match="step 3 is not saved: no checkpoint in run: no space"):
        broken_off()


def test_what_is_short_is_brought_to_its_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    with undisturbed():
        for number in ALL:
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_just_before_signals_are_held_does_not_cut_it_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second Ctrl-C comes while the handler of the first is being put in place."""
    boundary, trainer = StepBoundary(), Saved()
    before, real = signal.getsignal(signal.SIGINT), signal.signal
    boundary.on_step_end()
    late = [KeyboardInterrupt()]

    def interrupted(number: int, handler: Any) -> Any:
        if late:
            raise late.pop()
        return real(number, handler)

    def broken_off() -> None:
        with boundary.saving(trainer):
            monkeypatch.setattr(signal, "signal", interrupted)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="step 3 is saved"):
        broken_off()
    assert not late
    assert trainer.written == ["weights", "state"]
    assert signal.getsignal(signal.SIGINT) is before
