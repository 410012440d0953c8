"""The machine as the checks see it: a record of questions, so that a test can answer them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from flexinfer.core.host_memory import host_memory
from flexinfer.tasks.doctor.crew import Crew
from flexinfer.tasks.doctor.process import Run


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Questions a check may ask; it touches the machine in no other way.

    `version_of` and `requires_of` read a distribution's metadata; `findable` says whether a module
    could be imported, without importing it; `run` runs a process, from any thread; `stop` ends all
    that run; `disk_free` is in bytes; `writable` says whether files could be made in a folder;
    `host_memory` returns the bytes of main memory that can still be had.
    """

    python: tuple[int, int, int]
    executable: str
    headers: Path
    variables: Mapping[str, str]
    home: Path
    cores: int
    version_of: Callable[[str], str | None]
    requires_of: Callable[[str], Sequence[str]]
    findable: Callable[[str], bool]
    which: Callable[[str], str | None]
    run: Run
    disk_free: Callable[[Path], int]
    writable: Callable[[Path], bool]
    host_memory: Callable[[], int]
    stop: Callable[[], None] = lambda: None

    def switched_on(self, variable: str) -> bool:
        """Whether an environment variable is set to something that means yes."""
        return self.variables.get(variable, "").strip().lower() in {"1", "true", "yes", "on", "y"}


def this_machine() -> Environment:
    """Return the real machine."""
    crew = Crew()
    return Environment(
        python=sys.version_info[:3],
        executable=sys.executable,
        headers=Path(sysconfig.get_paths()["include"]),
        variables=dict(os.environ),
        home=Path.home(),
        cores=os.cpu_count() or 1,
        version_of=_version_of,
        requires_of=_requires_of,
        findable=_findable,
        which=shutil.which,
        run=crew,
        disk_free=_disk_free,
        writable=_writable,
        host_memory=host_memory,
        stop=crew.stop,
    )


def _version_of(distribution: str) -> str | None:
    """Return the installed version, None where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _requires_of(distribution: str) -> Sequence[str]:
    """Return the requirement lines of an installed distribution."""
    try:
        return metadata.requires(distribution) or ()
    except metadata.PackageNotFoundError:
        return ()


def _findable(module: str) -> bool:
    """Look for a top-level module on the path; a finder that chokes on it counts as found."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True


def _disk_free(path: Path) -> int:
    """Return the free bytes where `path` is, or where it would be made."""
    return shutil.disk_usage(_existing(path)).free


def _writable(path: Path) -> bool:
    """Whether files can be made in the folder `path`, or in the one where it would be made."""
    there = _existing(path)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _existing(path: Path) -> Path:
    """Return the nearest of `path` and its parents that exists and can be reached."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path
