"""Compiles kernels for a GPU that is not there, and reports what they need.

Run it as a program (`python -m tests.support.triton_compile 90`): it changes Triton for good, so
nothing else should run in its process. What it compiled stays in Triton's own cache.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

SHARED_LIMIT = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that a block may have, by compute capability (CUDA guide, 163 and 227 KB).

These are the capabilities that the kernels claim.
"""
WRITE = re.compile(r"\b(st|atom|red)\.(\w+\.)*global|cp\.async")
"""Of machine code; asynchronous copies may write as well as read."""
WAIT = "griddepcontrol.wait"


@dataclass(frozen=True)
class Built:
    """One compiled variant of a kernel, and the first case that needed it.

    `shared` and `stack` are bytes; `stack` is of one thread: what did not fit its registers.
    `dependent`: launched to start early; `waits`: it waits, before it writes to global memory;
    `tma`: it loads by the tensor memory accelerator.
    """

    case: str
    kernel: str
    warps: int
    shared: int
    registers: int
    stack: int
    dependent: bool
    waits: bool
    tma: bool


@dataclass
class Report:
    """What was compiled, and what could not be: errors by case."""

    built: list[Built] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


class FakeDriver:
    """A CUDA driver for a device that is not there."""

    def __init__(self, capability: int) -> None:
        """Take the compute capability, 90 for 9.0."""
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_device_interface(self) -> Any:
        return torch.cuda


def compile_cases(capability: int, cases: Iterable[tuple[str, Callable[[], None]]]) -> Report:
    """Run named cases, whose launches only compile; their tensors lie on the meta device."""
    report = Report()
    seen: set[str] = set()
    current = ""
    launch = JITFunction.run

    def warm(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """Compile instead of launching: nothing is returned, as where a kernel is interpreted."""
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            report.built.append(built(current, self.__name__, kernel))

    pretend(capability)
    JITFunction.run = warm
    for current, case in cases:
        try:
            case()
        except Exception as error:
            report.errors[current] = f"{type(error).__name__}: {error}"
    return report


def pretend(capability: int) -> None:
    """Make Triton compile for a capability, and tensors on `meta` look like CUDA ones."""
    driver.set_active(FakeDriver(capability))
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)
    torch.Tensor.is_cuda = property(lambda tensor: tensor.is_meta)


def built(case: str, name: str, kernel: Any) -> Built:
    """Read what a compiled kernel needs and does."""
    registers, stack = resources(kernel.asm["cubin"])
    ptx, meta = kernel.asm["ptx"], kernel.metadata
    first, wait = WRITE.search(ptx), ptx.find(WAIT)
    return Built(
        case=case, kernel=name, warps=meta.num_warps, shared=meta.shared, registers=registers,
        stack=stack, dependent=meta.launch_pdl,
        waits=wait >= 0 and (first is None or wait < first.start()), tma="cp.async.bulk" in ptx,
    )  # fmt: skip


def resources(cubin: bytes) -> tuple[int, int]:
    """Return registers and stack bytes of a thread, read from the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout)
    assert found, said.stdout + said.stderr
    return int(found[1]), int(found[2])


def load_report(text: str) -> Report:
    """Read what `main` wrote."""
    data = json.loads(text)
    return Report([Built(**one) for one in data["built"]], data["errors"])


def main() -> None:
    """Compile the cases of the capability given, and write the report to standard output.

    A second word chooses another list of cases: see triton_cases.
    """
    from tests.support import triton_cases

    capability = int(sys.argv[1])
    cases = triton_cases.LISTS[sys.argv[2] if len(sys.argv) > 2 else "all"]
    print(json.dumps(asdict(compile_cases(capability, cases(capability)))))


if __name__ == "__main__":
    main()
