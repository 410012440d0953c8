"""Signals wait while a step is being counted, and come through after it."""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest
import torch

from flexinfer.tasks.grpo.interrupts import RandomState, StepBoundary


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
