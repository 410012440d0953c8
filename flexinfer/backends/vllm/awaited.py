"""Ends a wait for vLLM's engine whose process is gone: vLLM's own client would wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

POLL_S = 1.0
GONE = "its engine's process ended early (the system may be short of memory)"


@contextmanager
def awaited(llm: Any) -> Iterator[None]:
    """Have a call of a vllm.LLM raise RuntimeError where the process of its engine ends meanwhile.

    vLLM sees that and notes it, but what waits for outputs is not told.
    """
    core, done = llm.llm_engine.engine_core, threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            if core.resources.engine_dead:
                core.outputs_queue.put_nowait(RuntimeError(GONE))
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
