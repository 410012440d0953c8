"""Engines that are looked over for leaks when a test is done with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flexinfer.engine.engine import Engine
from tests.support.engines import assert_idle, make_engine


@pytest.fixture
def open_engine() -> Iterator[Callable[..., Engine]]:
    """Return a function that builds engines; see make_engine."""
    opened: list[Engine] = []

    def build(*args: Any, **kwargs: Any) -> Engine:
        opened.append(make_engine(*args, **kwargs))
        return opened[-1]

    yield build
    for engine in opened:
        if engine._machinery is not None:
            assert_idle(engine)
            engine.close()
