"""Signals wait while a step is being counted, and come through after it."""

from __future__ import annotations

import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flexinfer.tasks.grpo.training.interrupts import RandomState, StepBoundary


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
