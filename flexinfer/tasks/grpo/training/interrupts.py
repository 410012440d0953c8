"""What ends training early keeps its last whole step; Ctrl-C waits while one is counted or kept."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy
import torch
from transformers import TrainerCallback

from flexinfer.errors import FlexinferError, WriteFailed

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RandomState(NamedTuple):
    """The generators that a checkpoint keeps: python's, numpy's, torch's on every device."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> RandomState:
        """Read them."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set them back."""
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Bring to its end what is within, which is short: a signal that comes meanwhile is forgotten.

    In the main thread alone: no other gets any.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = {number: signal.signal(number, lambda *came: None) for number in _heard()}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


class StepBoundary(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Knows the state after the last whole step; holds signals back while one is counted or saved.

    `notice` hears that a step is being saved.
    """

    def __init__(self, notice: Callable[[str], None] = lambda line: None) -> None:
        """Know nothing yet."""
        self.random: RandomState | None = None
        self._notice = notice
        self._held: dict[int, Any] = {}
        self._came: int | None = None

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Hold signals back."""
        self._hold()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Remember the generators, and let through what came."""
        self.random = RandomState.now()
        self._release()
        came, self._came = self._came, None
        if came is not None:
            signal.raise_signal(came)

    @contextmanager
    def saving(self, trainer: Any) -> Iterator[None]:
        """Save a checkpoint of the last whole step where training is interrupted, or breaks off.

        The KeyboardInterrupt or FlexinferError goes on, and says how to go on. A signal that comes
        while a step is saved is held back, and then forgotten: what it asks for is under way.
        """
        try:
            yield
        except KeyboardInterrupt as error:
            self._hold_at_last()
            if self.random is None:
                raise
            step = trainer.state.global_step
            self._notice(f"saving step {step}; a further Ctrl-C waits until it is written")
            self.random.restore()
            try:
                trainer._save_checkpoint(trainer.model, trial=None)
            except WriteFailed as failed:
                raise WriteFailed(f"step {step} is not saved: {failed.message}") from failed
            raise type(error)(f"step {step} is saved; --resume goes on from there") from error
        except FlexinferError as error:
            self._hold_at_last()
            self._save_despite(error, trainer)
            raise
        finally:
            self._came = None
            self._release()

    def _save_despite(self, error: FlexinferError, trainer: Any) -> None:
        """Save the last whole step after an error, where there is one and it can be; it says so.

        Not of several processes: the others may not be where this one is.
        """
        step = trainer.state.global_step
        if self.random is None or trainer.args.world_size > 1:
            return
        if (Path(trainer.args.output_dir) / f"checkpoint-{step}").exists():
            return
        self.random.restore()
        with suppress(FlexinferError):  # the first error is the one to tell
            trainer._save_checkpoint(trainer.model, trial=None)
            saved = f"step {step} is saved; --resume goes on from there"
            error.hint = saved if error.hint is None else f"{error.hint}; {saved}"

    def _hold(self) -> None:
        """Hold signals back until they are released; a second time changes nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _heard():
            self._held.setdefault(number, signal.getsignal(number))
            signal.signal(number, self._note)

    def _hold_at_last(self) -> None:
        """Hold signals back where one came just now: the next may come before they are held."""
        try:
            self._hold()
        except KeyboardInterrupt:
            self._hold()

    def _release(self) -> None:
        """Let signals through again, SIGINT last: it may come at once."""
        while self._held:
            signal.signal(*self._held.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal."""
        self._came = number


def _heard() -> list[signal.Signals]:
    """Return the signals that end a run here: one that is ignored stays so (nohup)."""
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
