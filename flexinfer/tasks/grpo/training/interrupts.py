"""What ends training early keeps its last whole step; Ctrl-C waits while a step is counted."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy
import torch
from transformers import TrainerCallback

from flexinfer.errors import FlexinferError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


class StepBoundary(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Knows the state after the last whole step, and holds signals back while one is counted."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.random: RandomState | None = None
        self._held: dict[int, Any] = {}
        self._came: tuple[int, FrameType | None] | None = None

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Hold signals back."""
        if threading.current_thread() is threading.main_thread() and not self._held:
            self._held = {number: signal.signal(number, self._note) for number in _SIGNALS}

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Remember the generators, and let through what came."""
        self.random = RandomState.now()
        self.release()

    @contextmanager
    def saving(self, trainer: Any) -> Iterator[None]:
        """Save a checkpoint of the last whole step where training is interrupted, or breaks off.

        The KeyboardInterrupt or FlexinferError goes on, and says how to go on.
        """
        try:
            yield
        except KeyboardInterrupt as error:
            self._came = None
            self.release()
            step = trainer.state.global_step
            if self.random is None:
                raise
            self.random.restore()
            trainer._save_checkpoint(trainer.model, trial=None)
            raise type(error)(f"step {step} is saved; --resume goes on from there") from error
        except FlexinferError as error:
            self._save_despite(error, trainer)
            raise
        finally:
            self.release()

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

    def release(self) -> None:
        """Let signals through again, and the one that came now."""
        held, self._held = self._held, {}
        for number, handler in held.items():
            signal.signal(number, handler)
        came, self._came = self._came, None
        if came is not None and callable(handler := held[came[0]]):
            handler(*came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal."""
        self._came = (number, frame)
