"""SIGTERM, SIGHUP and Ctrl-C end a command alike: what is finished is kept, nothing said twice."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from flexinfer.errors import FlexinferError

_Handler = Callable[[int, FrameType | None], None] | signal.Handlers

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM came, or SIGHUP: the terminal or the connection to it is gone."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated where SIGTERM or SIGHUP comes, unless it is ignored as by nohup(1).

    Further ones are ignored, since timeout(1) sends two; Ctrl-C or SIGKILL end what hangs then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _change(signal.SIG_DFL, _raise)
    try:
        yield
    finally:
        _change(_raise, signal.SIG_DFL)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make an unforeseen error that follows on a Ctrl-C a KeyboardInterrupt again.

    Compiled modules that are interrupted while they are imported swallow it, and fail later.
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if came and not isinstance(error, FlexinferError | OSError):
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise(number: int, frame: FrameType | None) -> None:
    """End the work."""
    _change(_raise, signal.SIG_IGN)
    raise Terminated


def _change(before: _Handler, after: _Handler) -> None:
    """Handle the signals that end a command by `after`, where they were handled by `before`."""
    for number in _ENDING:
        if signal.getsignal(number) is before:
            signal.signal(number, after)
