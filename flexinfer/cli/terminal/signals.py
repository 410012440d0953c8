"""SIGTERM and Ctrl-C end a command alike: what is finished is kept, nothing is said twice."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flexinfer.errors import FlexinferError


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated where SIGTERM comes, unless whoever started the process had it ignored.

    A further one is ignored, since timeout(1) sends two; Ctrl-C or SIGKILL end what hangs then.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is _raise:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
