"""The `environment` block of every JSON document: what ran, on which device, of which versions.

Nothing heavy is imported: versions come from package metadata, and the device's name from torch
only where a task has imported torch already, else from the driver's own tool.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flexinfer import __version__

SCHEMA_VERSION = 1
_PACKAGES = (
    "triton",
    "peft",
    "bitsandbytes",
    "flash-attn-4",
    "trl",
    "accelerate",
    "safetensors",
    "tokenizers",
    "gguf",
    "vllm",
)


def environment() -> dict[str, Any]:
    """Return device, driver, torch, transformers, versions and commit; None where there is none."""
    name, driver = _gpu()
    found = {package: _version(package) for package in _PACKAGES}
    return {
        "device": _cuda_name() or name or platform.machine() + " CPU",
        "driver": driver,
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "versions": {"flexinfer": __version__, "python": platform.python_version()}
        | {package: number for package, number in found.items() if number is not None},
        "platform": platform.platform(),
        "commit": _commit(),
    }


def now() -> str:
    """Return the `started_at` of a document: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def document(command: str, config: dict[str, Any], started_at: str) -> dict[str, Any]:
    """Return the head that every JSON document has; the command's own keys follow it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "config": config,
        "environment": environment(),
        "started_at": started_at,
    }


def _version(package: str) -> str | None:
    """Return the installed version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cuda_name() -> str | None:
    """Return the name of torch's current CUDA device, where torch is imported and has one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())


def _gpu() -> tuple[str | None, str | None]:
    """Return (name, driver version) of the first GPU as the driver tells them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = _output(query).splitlines()
    if not lines or "," not in lines[0]:
        return None, None
    name, driver = lines[0].rsplit(",", 1)
    return name.strip(), driver.strip()


def _commit() -> str | None:
    """Return the commit of the checkout this package runs from, `-dirty` where it was edited."""
    package = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(package)]
    if not _output([*git, "ls-files", "__init__.py"]):
        return None
    commit = _output([*git, "rev-parse", "HEAD"])
    return (
        f"{commit}-dirty" if _output([*git, "diff", "--name-only", "HEAD", "--", "."]) else commit
    )


def _output(command: list[str]) -> str:
    """Return what a command prints, "" where it is missing, fails or hangs.

    GIT_DIR and its like, as a git hook has them, would lead git to another repository.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=variables
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()
