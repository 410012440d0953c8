"""What vLLM logs: to stderr, and its errors to a file too, as its engine is another process.

Who started that process hears from it only that it failed, and to see the root cause above.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flexinfer.backends.vllm.awaited import GONE
from flexinfer.errors import EnvironmentUnfit, FlexinferError, NotEnoughMemory, one_line

CONFIG, SWITCH, LEVEL = "VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_LEVEL"
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
UNHEARD = (
    "vllm.renderers.base",
    "vllm.model_executor.model_loader.reload.layerwise",
    "vllm.v1.worker.cpu_worker",
)
"""Loggers that warn of chats, which nobody has here, of tied weights that were copied once, and on
a CPU of threads, before every call."""
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""How the line of a traceback begins that says what was raised."""
SHORT = (
    "out of memory",
    "free memory on device",
    "no available memory",
    "available kv cache memory",
    "is less than requested memory",
    "less than desired",
)
"""What vLLM and torch say where memory does not suffice, in lower case."""


@contextmanager
def engine_variables(folder: Path) -> Iterator[None]:
    """Set what vLLM reads in this process and in its engine's, while both are started.

    Its own stdout is for data, so what it logs goes to stderr. The engine is spawned: a fork would
    copy threads, and has no use of CUDA where that is initialised. What a user has set stays.
    """
    config = folder / "logging.json"
    config.write_text(json.dumps(_config(_errors(folder))))
    with variables({METHOD: "spawn"} | ({} if SWITCH in os.environ else {CONFIG: str(config)})):
        yield


@contextmanager
def variables(wanted: Mapping[str, str], over: bool = False) -> Iterator[None]:
    """Set environment variables meanwhile; those that are set already only with `over`."""
    ours = {name: value for name, value in wanted.items() if over or name not in os.environ}
    before = {name: os.environ[name] for name in ours if name in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(before)


def failure(error: Exception, folder: Path) -> FlexinferError:
    """Return the error that vLLM's stands for, with what its engine's process logged of it."""
    said = one_line(error)
    if "root cause" in said:
        said = _logged(_errors(folder)) or GONE
    if any(words in said.lower() for words in SHORT):
        return NotEnoughMemory(
            f"vllm: {said}",
            hint="lower --max-batch-size or --max-seq-length, or give --kv-memory what it needs",
        )
    return EnvironmentUnfit(f"vllm: {said}")


def _errors(folder: Path) -> Path:
    """Return where errors are logged."""
    return folder / "errors"


def _logged(file: Path) -> str | None:
    """Return the last exception of a log, the first line of what it says."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    raised = [line for line in lines if RAISED.match(line)]
    return raised[-1] if raised else None


def _config(errors: Path) -> dict[str, Any]:
    """Return vLLM's logging as logging.config.dictConfig takes it."""
    kind, level = "logging.StreamHandler", os.environ.get(LEVEL, "WARNING")
    screen = {"class": kind, "stream": "ext://sys.stderr", "level": level, "formatter": "screen"}
    file = {"class": "logging.FileHandler", "filename": str(errors), "level": "ERROR"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"screen": {"format": "vllm: %(levelname)s %(message)s"}},
        "handlers": {"screen": screen, "errors": file},
        "loggers": {
            "vllm": {"handlers": ["screen", "errors"], "level": level, "propagate": False},
            **{name: {"level": "ERROR"} for name in UNHEARD},
        },
    }
