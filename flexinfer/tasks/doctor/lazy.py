"""An answer that is found once, by whichever thread asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """A question that is put at most once; threads that ask meanwhile wait for the same answer."""

    def __init__(self, question: Callable[[], T]) -> None:
        """Keep the question; nothing is asked yet."""
        self._question = question
        self._claim = threading.Lock()
        self._answer: Future[T] = Future()

    def get(self) -> T:
        """Return the answer, or raise what the question raised, each time alike."""
        if self._claim.acquire(blocking=False):  # Never released: the first to come asks.
            try:
                self._answer.set_result(self._question())
            except BaseException as error:
                self._answer.set_exception(error)
        return self._answer.result()
