"""What of the host's memory a process can still have: the least that anything bounds it to.

That is the machine (proc(5)), the control groups it runs in, such as a container's or a batch
job's (cgroups(7); the kernel's cgroup-v2 and cgroup-v1/memory), and `ulimit -v` (getrlimit(2)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Names(NamedTuple):
    """How a version of control groups calls its files, and what of the used memory is idle."""

    folder: str
    limit: str
    used: str
    idle: str


_V1 = _Names(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
_V2 = _Names("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def host_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can still be had; what caches would give up counts as free.

    Where `root` has no proc file system, all of the machine's memory.
    """
    bounds = (_of_machine(root), _of_address_space(root), *_of_groups(root))
    return max(0, min(bound for bound in bounds if bound is not None))


def _of_machine(root: Path) -> int:
    """Return what the kernel holds for available, else all of the memory."""
    found = _number(r"^MemAvailable:\s*(\d+) kB", root / "proc/meminfo")
    if found is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found * 2**10


def _of_address_space(root: Path) -> int | None:
    """Return what `ulimit -v` leaves, None where it bounds nothing."""
    limit = _number(r"^Max address space\s+(\d+)", root / "proc/self/limits")
    used = _number(r"^VmSize:\s*(\d+) kB", root / "proc/self/status")
    return None if limit is None or used is None else limit - used * 2**10


def _of_groups(root: Path) -> Iterator[int | None]:
    """Yield what each control group of this process leaves, and each one around it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = f"{line}::".split(":")[:3]
        names = _V2 if not controllers else _V1
        if names is _V2 or "memory" in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            inner = len(parts) if ".." not in parts else 0  # beside what this process can see
            for depth in range(inner, -1, -1):
                yield _of_group(root.joinpath(names.folder, *parts[:depth]), names)


def _of_group(folder: Path, names: _Names) -> int | None:
    """Return what the limit of one control group leaves, None where it has none."""
    limit = _number(r"^(\d+)", folder / names.limit)
    used = _number(r"^(\d+)", folder / names.used)
    if limit is None or used is None:
        return None
    return limit - used + (_number(rf"^{names.idle} (\d+)", folder / "memory.stat") or 0)


def _number(pattern: str, file: Path) -> int | None:
    """Return the first number in a file that stands as the pattern says, None where none does."""
    found = re.search(pattern, _text(file), re.MULTILINE)
    return None if found is None else int(found[1])


def _text(file: Path) -> str:
    """Return what a file says; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
