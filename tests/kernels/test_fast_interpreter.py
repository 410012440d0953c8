"""The kernels' own tests run in Triton's interpreter, and a kernel with a fault fails them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.triton_sessions import FOLDER, ROOT, interpret, obstacle

pytest.importorskip("triton")
if (reason := obstacle()) is not None:
    pytest.skip(reason, allow_module_level=True)

FILES = sorted(path.name for path in (ROOT / FOLDER).glob("test_*.py"))
Outcome = Future[tuple[dict[str, Counter[str]], str]]


class Fault(NamedTuple):
    """A change of a kernel's text, and the tests that must see it."""

    file: str
    right: str
    wrong: str
    tests: str


FAULTS = {
    "wrong split: a share stops a turn early": Fault(
        "attention.py",
        "end = tl.minimum(start + per, turn0 + turns)",
        "end = tl.minimum(start + per - (share > 0), turn0 + turns)",
        "test_attention.py",
    ),
    "wrong window edge: one key more": Fault(
        "attention.py",
        "first = tl.maximum(position - WINDOW + 1, 0)",
        "first = tl.maximum(position - WINDOW, 0)",
        "test_attention.py",
    ),
    "stale page: the one before": Fault(
        "attention.py",
        "column == (turn * BN) // PAGE",
        "column == tl.maximum((turn * BN) // PAGE - 1, 0)",
        "test_attention.py",
    ),
    "stale keys: the rest of the last page": Fault(
        "attention.py",
        "seen = (key <= position)",
        "seen = (key // PAGE <= position // PAGE)",
        "test_attention.py",
    ),
    "missing partial sum": Fault(
        "norms.py",
        "for s in tl.static_range(1, SPLIT):",
        "for s in tl.static_range(1, SPLIT - 1):",
        "test_norms.py",
    ),
    "rope sign": Fault(
        "rope_write.py",
        "(high * cos).to(dtype).to(tl.float32) + (low * sin)",
        "(high * cos).to(dtype).to(tl.float32) - (low * sin)",
        "test_rope_write.py",
    ),
    "ranks of another member": Fault(
        "lora/add.py",
        "last = tl.where(mine, rank + RANKS[i], last)",
        "last = tl.where(mine, rank + RANKS[i] + 1, last)",
        "test_lora.py",
    ),
    "side path rounded once too little": Fault(
        "lora/add.py",
        "base.to(tl.float32) + side.to(dtype).to(tl.float32)",
        "base.to(tl.float32) + side",
        "test_lora.py",
    ),
    "halves of a byte the wrong way round": Fault(
        "nf4/lut.py",
        "return (even * scale).to(dtype), (odd * scale).to(dtype)",
        "return (odd * scale).to(dtype), (even * scale).to(dtype)",
        "test_nf4.py",
    ),
    "4-bit scale of the block before": Fault(
        "nf4/turns.py",
        "tl.int64) * (K // 64) + k // 64 + tl.arange",
        "tl.int64) * (K // 64) + tl.maximum(k // 64 - 1, 0) + tl.arange",
        "test_nf4.py",
    ),
    "the sums of a block's warps not added": Fault(
        "nf4/turns.py", "acc = tl.sum(sums, 0)", "acc = tl.max(sums, 0)", "test_nf4.py"
    ),
    "partial sums of gate and up used before they are rounded": Fault(
        "glue.py",
        "x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)",
        "x, y = x, y",
        "test_glue.py",
    ),
}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Start everything at once, two at a time; what no test waits for is not begun."""
    with ThreadPoolExecutor(2) as pool:
        halves = (FILES[::2], FILES[1::2])
        running = [(half, pool.submit(interpret, half)) for half in halves]
        started = {file: session for half, session in running for file in half}
        for name, fault in FAULTS.items():
            root = tmp_path_factory.mktemp("faulty")
            started[name] = pool.submit(interpret_faulty, fault, root)
        yield started
        pool.shutdown(cancel_futures=True)


def interpret_faulty(fault: Fault, root: Path) -> tuple[dict[str, Counter[str]], str]:
    """Run the tests of a fault over a copy of the package that has it."""
    for part in ("flexinfer", "tests"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    path = root / "flexinfer" / "kernels" / "fast" / fault.file
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise RuntimeError(f"{fault.file} has changed: plant this fault anew")
    path.write_text(text.replace(fault.right, fault.wrong))
    return interpret([fault.tests], root, "-x")


@pytest.mark.parametrize("file", FILES)
def test_kernels_are_right(file: str, sessions: dict[str, Outcome]) -> None:
    verdicts, said = sessions[file].result()
    assert verdicts[file].keys() == {"PASSED"}, said


@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_with_a_fault_is_caught(name: str, sessions: dict[str, Outcome]) -> None:
    verdicts, said = sessions[name].result()
    assert verdicts[FAULTS[name].tests]["FAILED"], f"nothing saw it\n{said}"
    assert "AssertionError" in said, said
