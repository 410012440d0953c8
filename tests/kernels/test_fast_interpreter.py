"""The kernels' own tests run in Triton's interpreter, and a kernel with a fault fails them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.triton_sessions import FOLDER, ROOT, Session, Sessions, obstacle

pytest.importorskip("triton")
if (reason := obstacle()) is not None:
    pytest.skip(reason, allow_module_level=True)

FILES = sorted(path.name for path in (ROOT / FOLDER).glob("test_*.py"))
HALVES = {"half": tuple(FILES[::2]), "other half": tuple(FILES[1::2])}


class Fault(NamedTuple):
    """A change of a kernel's text, and the test that must see it."""

    file: str
    right: str
    wrong: str
    test: str


FAULTS = {
    "wrong split: a share stops a turn early": Fault(
        "attention.py",
        "end = tl.minimum(start + per, turn0 + turns)",
        "end = tl.minimum(start + per - (share > 0), turn0 + turns)",
        "test_attention.py::test_positions_and_shares",
    ),
    "wrong window edge: one key more": Fault(
        "attention.py",
        "first = tl.maximum(position - WINDOW + 1, 0)",
        "first = tl.maximum(position - WINDOW, 0)",
        "test_attention.py::test_windows",
    ),
    "stale page: the one before": Fault(
        "attention.py",
        "column == (turn * BN) // PAGE",
        "column == tl.maximum((turn * BN) // PAGE - 1, 0)",
        "test_attention.py::test_positions_and_shares",
    ),
    "stale keys: the rest of the last page": Fault(
        "attention.py",
        "seen = (key <= position)",
        "seen = (key // PAGE <= position // PAGE)",
        "test_attention.py::test_positions_and_shares",
    ),
    "missing partial sum": Fault(
        "norms.py",
        "for s in tl.static_range(1, SPLIT):",
        "for s in tl.static_range(1, SPLIT - 1):",
        "test_norms.py::test_add_norm",
    ),
    "rope sign": Fault(
        "rope_write.py",
        "(high * cos).to(dtype).to(tl.float32) + (low * sin)",
        "(high * cos).to(dtype).to(tl.float32) - (low * sin)",
        "test_rope_write.py::test_norms_and_parts",
    ),
    "ranks of another member": Fault(
        "lora/add.py",
        "last = tl.where(mine, rank + RANKS[i], last)",
        "last = tl.where(mine, rank + RANKS[i] + 1, last)",
        "test_lora.py::test_add",
    ),
    "side path rounded once too little": Fault(
        "lora/add.py",
        "base.to(tl.float32) + side.to(dtype).to(tl.float32)",
        "base.to(tl.float32) + side",
        "test_lora.py::test_rounded_where_the_plain_form_rounds",
    ),
    "halves of a byte the wrong way round": Fault(
        "nf4/lut.py",
        "return (even * scale).to(dtype), (odd * scale).to(dtype)",
        "return (odd * scale).to(dtype), (even * scale).to(dtype)",
        "test_nf4.py::test_each_share_is_the_product_of_its_inputs",
    ),
    "4-bit scale of the block before": Fault(
        "nf4/turns.py",
        "tl.int64) * (K // 64) + k // 64 + tl.arange",
        "tl.int64) * (K // 64) + tl.maximum(k // 64 - 1, 0) + tl.arange",
        "test_nf4.py::test_each_share_is_the_product_of_its_inputs",
    ),
    "the sums of a block's warps not added": Fault(
        "nf4/turns.py",
        "acc = tl.sum(sums, 0)",
        "acc = tl.max(sums, 0)",
        "test_nf4.py::test_however_many_warps_share_a_turn",
    ),
    "partial sums of gate and up used before they are rounded": Fault(
        "glue.py",
        "x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)",
        "x, y = x, y",
        "test_glue.py::test_act_mul_of_partial_sums",
    ),
}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Start everything at once, two at a time; what no test waits for is not begun."""
    asked = {name: Session(files) for name, files in HALVES.items()}
    for name, fault in FAULTS.items():
        root = tmp_path_factory.mktemp("faulty")
        plant(fault, root)
        asked[name] = Session((fault.test,), root, ("-x",))
    started = Sessions(asked, tmp_path_factory.mktemp("printed"))
    yield started
    started.close()


def plant(fault: Fault, root: Path) -> None:
    """Make a copy of the package that has a fault."""
    for part in ("flexinfer", "tests"):
        shutil.copytree(ROOT / part, root / part)
    shutil.copy(ROOT / "pyproject.toml", root)
    path = root / "flexinfer" / "kernels" / "fast" / fault.file
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise RuntimeError(f"{fault.file} has changed: plant this fault anew")
    path.write_text(text.replace(fault.right, fault.wrong))


@pytest.mark.parametrize("file", FILES)
def test_kernels_are_right(file: str, sessions: Sessions) -> None:
    verdicts, said = sessions.result(next(half for half in HALVES if file in HALVES[half]))
    assert verdicts[file].keys() == {"PASSED"}, said


@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_with_a_fault_is_caught(name: str, sessions: Sessions) -> None:
    verdicts, said = sessions.result(name)
    assert verdicts[FAULTS[name].test.partition("::")[0]]["FAILED"], f"nothing saw it\n{said}"
    assert "AssertionError" in said, said
