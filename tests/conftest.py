"""For all tests: no network, no cache of the user's, one thread.

Tiny models are many times slower when several threads fight over them.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flexinfer.engine.engine import Engine

HF_HOME = tempfile.mkdtemp(prefix="flexinfer-tests-")
os.environ |= {
    "HF_HOME": HF_HOME,
    "XDG_CACHE_HOME": HF_HOME,
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# what a shell starts in the background ignores Ctrl-C, nohup has SIGHUP ignored, and so would all
# that tests start; a handler is none of theirs
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *came: None)
for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"):
    os.environ.pop(name, None)

LONGEST = (
    "tests/kernels/test_fast_interpreter.py",
    "tests/tasks/grpo/test_learns.py",
    "tests/tasks/drift/test_drift.py",
    "tests/tasks/grpo/test_processes.py",
    "tests/cli/test_train_grpo.py",
    "tests/kernels/test_fast_compile.py",
    "tests/tasks/grpo/test_resume.py",
    "tests/tasks/grpo/test_on_policy.py",
    "tests/tasks/grpo/test_damage.py",
    "tests/tasks/drift/test_4bit.py",
)
"""Test files that take longest, the longest first."""
LOCAL = ("127.", "::1", "localhost", "0.0.0.0")
REAL_CONNECT = socket.socket.connect


def _connect(self: socket.socket, address: Any) -> None:
    """Connect on this machine only."""
    inet = self.family in (socket.AF_INET, socket.AF_INET6)
    if inet and not str(address[0]).startswith(LOCAL):
        raise OSError(f"a test reaches for the network: {address}")
    REAL_CONNECT(self, address)


def pytest_configure() -> None:
    """Cut the network before a test module is imported."""
    socket.socket.connect = _connect


def pytest_unconfigure() -> None:
    """Put the network back and remove the cache."""
    socket.socket.connect = REAL_CONNECT
    shutil.rmtree(HF_HOME, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that several processes end at one time."""
    gone = [file for file in LONGEST if not (config.rootpath / file).is_file()]
    assert not gone, f"LONGEST names what is not there: {gone}"
    ranks = {file: rank for rank, file in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Keep torch, where a test imported it, to one thread."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Keep what was there before a module out of full collections.

    Trainers and continuous batching ask for many, and over all imported libraries each takes most
    of a second. What a test makes is collected, counted and found as ever.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def open_engine() -> Iterator[Callable[..., Engine]]:
    """Return a function that builds engines (see make_engine), which are then checked for leaks."""
    from tests.support.engines import assert_idle, make_engine

    opened: list[Engine] = []

    def build(*args: Any, **kwargs: Any) -> Engine:
        opened.append(make_engine(*args, **kwargs))
        return opened[-1]

    yield build
    for engine in opened:
        if engine._machinery is not None:
            assert_idle(engine)
            engine.close()
