"""Every own kernel compiles for every capability it claims, and fits: without a GPU.

Real models' steps are launched on the meta device, and every tile of the shipped table; see
tests/support/triton_cases.py. What was compiled stays in Triton's cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.triton_cases import ROWS, attention_shapes, capability_of, shipped
from tests.support.triton_compile import SHARED_LIMIT, Report, load_report

ROOT = Path(__file__).parents[2]
STACK_LIMIT = 256
"""Bytes that a thread may spill: what the best measured tiles do; more is a tile too large."""
SMALLEST = 101_376
"""Shared memory of a block on sm_86 and sm_89, which run what is compiled for sm_80."""
KERNELS = {
    name
    for path in (ROOT / "flexinfer" / "kernels" / "fast").rglob("*.py")
    for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)
}
capabilities = pytest.mark.parametrize("capability", SHARED_LIMIT)


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a process that compiles."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.triton_compile", *arguments],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start everything at once."""
    started = {str(capability): start(str(capability)) for capability in SHARED_LIMIT}
    started["faulty"] = start("90", "faulty")
    yield started
    for process in started.values():
        process.kill()


def report_of(process: subprocess.Popen[str]) -> Report:
    """Wait for what a process found."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    return load_report(out)


@pytest.fixture(scope="module")
def reports(processes: dict[str, subprocess.Popen[str]]) -> dict[int, Report]:
    """What was compiled for each capability."""
    return {capability: report_of(processes[str(capability)]) for capability in SHARED_LIMIT}


@capabilities
def test_every_kernel_compiles(capability: int, reports: dict[int, Report]) -> None:
    report = reports[capability]
    assert not report.errors
    assert {built.kernel for built in report.built} == KERNELS


@capabilities
def test_shared_memory_is_enough(capability: int, reports: dict[int, Report]) -> None:
    limit = SHARED_LIMIT[capability]
    assert [built for built in reports[capability].built if built.shared > limit] == []


@capabilities
def test_registers_are_enough(capability: int, reports: dict[int, Report]) -> None:
    assert [built for built in reports[capability].built if built.stack > STACK_LIMIT] == []


def test_defaults_fit_the_smallest_device(reports: dict[int, Report]) -> None:
    built = [built for built in reports[80].built if "untuned" in built.case]
    assert {one.kernel for one in built} >= {"decode_kernel", "prefill_kernel"}
    assert [one for one in built if one.shared > SMALLEST] == []


@pytest.mark.parametrize("capability", [90, 100])
def test_dependent_launches_wait(capability: int, reports: dict[int, Report]) -> None:
    """A kernel that starts early writes nothing before the kernel before it has ended."""
    dependent = [built for built in reports[capability].built if built.dependent]
    assert {built.kernel for built in dependent} >= {"add_norm_kernel", "rope_write_kernel"}
    assert [built for built in dependent if not built.waits] == []


def test_older_devices_get_neither_dependent_launches_nor_tma(reports: dict[int, Report]) -> None:
    assert [built for built in reports[80].built if built.dependent or built.tma] == []
    assert {built.tma for built in reports[90].built if built.kernel == "matmul_kernel"} == {True}


def test_the_whole_table_is_compiled() -> None:
    """Its devices' capabilities are known, and its attention is that of the models compiled."""
    for device, entries in shipped().items():
        assert capability_of(device) in SHARED_LIMIT
        assert set(entries["decode"]) <= attention_shapes()
        assert {int(rows) for found in entries["decode"].values() for rows in found} <= set(ROWS)
        assert set(entries.get("prefill", ())) <= {one.split("x")[1] for one in attention_shapes()}


def test_the_checks_object(processes: dict[str, subprocess.Popen[str]]) -> None:
    """Tiles that ask for too much, do not compile and spill, and a write before the wait."""
    report = report_of(processes["faulty"])
    assert set(report.errors) == {"no power of two"}
    found = {built.case: built for built in report.built}
    assert found["too many stages"].shared > SHARED_LIMIT[90]
    assert found["too few warps"].stack > STACK_LIMIT
    assert [built.waits for built in report.built if built.dependent] == [True, False]
