"""What of the host's memory can be had: the machine, control groups and ulimit, whatever is least.

The files are as Linux writes them, under a root of the test's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexinfer.core.host_memory import host_memory

GIB = 2**30
MACHINE = {"proc/meminfo": f"MemTotal: 99 kB\nMemFree: 1000 kB\nMemAvailable: {64 * 2**20} kB\n"}
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
NO_LIMIT = 2**63 - 4096


def v1(folder: str, limit: int, used: int, idle: int) -> dict[str, str]:
    """The files of a control group of the first version; its own idle pages are not the sum."""
    return {
        f"{V1}{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{V1}{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{V1}{folder}/memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {idle}\n",
    }


def v2(folder: str, limit: int | str, used: int, idle: int) -> dict[str, str]:
    """The files of a control group of the second version."""
    return {
        f"{V2}{folder}/memory.max": f"{limit}\n",
        f"{V2}{folder}/memory.current": f"{used}\n",
        f"{V2}{folder}/memory.stat": f"anon 7\ninactive_file {idle}\nactive_file 9\n",
    }


def own(line: str) -> dict[str, str]:
    return {"proc/self/cgroup": f"9:name=systemd:/\n1:cpu,cpuacct:/x\n{line}\n"}


def ulimit(limit: str, used_kib: int) -> dict[str, str]:
    head = "Limit                     Soft Limit           Hard Limit           Units     \n"
    return {
        "proc/self/limits": f"{head}Max cpu time              unlimited            unlimited\n"
        f"Max address space         {limit:<20} unlimited            bytes     \n",
        "proc/self/status": f"Name:\tpython\nVmPeak:\t 999999 kB\nVmSize:\t {used_kib} kB\n",
    }


OUTER = v2("", "max", 40 * GIB, GIB) | v2("/jobs", 20 * GIB, 15 * GIB, 2 * GIB)
GIVEN: dict[str, tuple[dict[str, str], int]] = {
    "the machine alone": ({}, 64 * GIB),
    "v2, own group": (own("0::/a") | v2("/a", 8 * GIB, 3 * GIB, GIB), 6 * GIB),
    "v2, seen from within a container": (own("0::/") | v2("", 8 * GIB, 3 * GIB, 0), 5 * GIB),
    "v2, no limit": (own("0::/a") | v2("/a", "max", 3 * GIB, GIB), 64 * GIB),
    "v2, a group around it": (own("0::/jobs/1") | v2("/jobs/1", "max", 0, 0) | OUTER, 7 * GIB),
    "v2, a group out of sight": (own("0::/../b") | v2("", 9 * GIB, GIB, 0), 8 * GIB),
    "v2, used up": (own("0::/") | v2("", GIB, GIB + 4096, 0), 0),
    "v2, more than the machine has": (own("0::/a") | v2("/a", 900 * GIB, 0, 0), 64 * GIB),
    "v1, own group": (own("4:memory:/a/b") | v1("/a/b", 4 * GIB, 2 * GIB, GIB), 3 * GIB),
    "v1, a group around it": (
        own("4:memory:/a/b") | v1("/a/b", NO_LIMIT, GIB, 0) | v1("", 4 * GIB, GIB, 0),
        3 * GIB,
    ),
    "v1 beside v2 without memory": (
        own("4:memory:/a\n0::/a") | v1("/a", 4 * GIB, 2 * GIB, GIB),
        3 * GIB,
    ),
    "v1, other groups than memory's": (own("4:memory:/") | v1("/x", GIB, 0, 0), 64 * GIB),
    "ulimit": (ulimit(str(10 * GIB), 2**20), 9 * GIB),
    "no ulimit": (ulimit("unlimited", 2**20), 64 * GIB),
    "ulimit below a group": (
        ulimit(str(3 * GIB), 2**20) | own("0::/") | v2("", 8 * GIB, 3 * GIB, 0),
        2 * GIB,
    ),
    "texts that say nothing": (
        {"proc/self/cgroup": "what\n0:\n\n", f"{V2}/memory.max": "", "proc/self/limits": "\n"},
        64 * GIB,
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_least_bound_counts(name: str, tmp_path: Path) -> None:
    files, expected = GIVEN[name]
    for path, text in (MACHINE | files).items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert host_memory(tmp_path) == expected


def test_a_system_without_proc_has_all_of_its_memory(tmp_path: Path) -> None:
    assert host_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ulimit_of_a_real_process() -> None:
    """And no torch is needed to ask."""
    asked = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))\n"
        "from flexinfer.core.host_memory import host_memory\n"
        "assert 'torch' not in sys.modules\n"
        "print(host_memory())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    )
    assert 0 < int(found.stdout) < GIB
