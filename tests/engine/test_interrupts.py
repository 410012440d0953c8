"""An interrupt may come between any two lines; the engine answers the next call as a new one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from flexinfer.engine.engine import Engine
from tests.support.engines import ids_of, machinery, request
from tests.support.prompts import prompts_of

Open = Callable[..., Engine]
OURS = ("/flexinfer/core/", "/flexinfer/engine/steps/loop.py", "/flexinfer/engine/engine.py")
REQUESTS = [
    request(prompt, n=3, max_new_tokens=5, temperature=1.0, seed=4) for prompt in prompts_of(9, 3)
]


@contextmanager
def interrupted_at(line: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the `line`-th line executed in our files; yields the count."""
    seen = [0]

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            seen[0] += 1
            if seen[0] == line:
                raise KeyboardInterrupt
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if any(part in frame.f_code.co_filename for part in OURS) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield seen
    finally:
        sys.settrace(before)


def test_between_any_two_lines(open_engine: Open) -> None:
    engine = open_engine("qwen3", max_batch_size=4)
    with interrupted_at(0) as lines:
        expected = [ids_of(output.outputs) for output in engine.generate(REQUESTS)]
    pool = machinery(engine).scheduler.pool
    free = pool.free
    assert lines[0] > 3000
    for line in range(3, lines[0], 89):
        with interrupted_at(line), pytest.raises(KeyboardInterrupt):
            engine.generate(REQUESTS)
        assert [ids_of(output.outputs) for output in engine.generate(REQUESTS)] == expected, line
        assert pool.free == free
