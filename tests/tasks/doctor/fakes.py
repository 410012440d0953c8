"""A machine that exists only in a test: every question of doctor has a canned answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.environment import Environment
from flexinfer.tasks.doctor.process import RunOutcome
from flexinfer.tasks.doctor.registry import list_checks
from flexinfer.tasks.doctor.report import DoctorConfig, Finding

GIB = 2**30
CPU_TORCH = {"version": "2.13.0+cpu", "cuda": None, "hip": None, "cpu_capability": "AVX512"}
NO_CUDA = {"cuda_available": False, "cuda_error": "Torch not compiled with CUDA enabled"}
H200 = {"name": "NVIDIA H200", "capability": [9, 0], "total": 140 * GIB, "free": 138 * GIB}


def says(*rows: Mapping[str, Any], error: str | None = None, code: int | None = 1) -> RunOutcome:
    """Return the outcome of a probe that prints `rows`, then ends well or raises `error`."""
    stdout = "".join(json.dumps(row) + "\n" for row in rows)
    if error is None and code == 1:
        return RunOutcome(code=0, stdout=stdout)
    trace = f"Traceback (most recent call last):\n  File 'x', line 1\n{error}\n"
    return RunOutcome(code=code, stdout=stdout, stderr=trace)


def on_cpu() -> RunOutcome:
    """Return what the torch probe says without a GPU."""
    return says(CPU_TORCH, NO_CUDA)


def on_cuda(version: str = "2.11.0+cu130", **device: Any) -> RunOutcome:
    """Return what the torch probe says on one GPU, an H200 unless told otherwise."""
    return says(
        CPU_TORCH | {"version": version, "cuda": "13.0"},
        {"cuda_available": True, "cuda_error": None},
        {"devices": [H200 | device], "arch_list": ["sm_90"]},
        {"matmul_error": 1e-4},
    )


MISSING = says(error="ModuleNotFoundError: No module named 'nothing'")
SYMBOL = "ImportError: /lib/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS"


class FakeRun:
    """Answers command lines from a table and remembers them.

    Keys: `torch_facts`, `nf4`, ... for probes, `importing NAME` for imports, else the program.
    """

    def __init__(self, answers: Mapping[str, RunOutcome]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> RunOutcome:
        self.asked.append(list(argv))
        outcome = self.answers.get(_key(argv), MISSING)
        for line in outcome.stdout.splitlines():
            on_line(line)
        return outcome


def _key(argv: Sequence[str]) -> str:
    if argv[1:2] != ["-P"]:
        return Path(argv[0]).name
    script = Path(argv[3]).stem
    return f"importing {argv[4]}" if script == "importing" else script


def machine(
    tmp_path: Path,
    answers: Mapping[str, RunOutcome] | None = None,
    versions: Mapping[str, str] | None = None,
    requires: Mapping[str, Sequence[str]] | None = None,
    modules: Sequence[str] = (),
    programs: Sequence[str] = ("g++",),
    memory: int = 16 * GIB,
    **fields: Any,
) -> Environment:
    """Build a healthy CPU machine whose home is `tmp_path`, changed as the test wants."""
    versions = {"transformers": "5.24.0"} if versions is None else versions
    healthy = {
        "torch_facts": on_cpu(),
        "importing transformers": says({"version": versions.get("transformers")}, {"names": True}),
        "g++": RunOutcome(code=0),
        "answer": RunOutcome(code=0, stdout="42"),
    }
    (tmp_path / "include").mkdir(exist_ok=True)
    (tmp_path / "include" / "Python.h").touch()
    machine = {
        "python": (3, 11, 7),
        "executable": "python",
        "headers": tmp_path / "include",
        "variables": {},
        "home": tmp_path,
        "cores": 2,
        "version_of": versions.get,
        "requires_of": lambda name: (requires or {}).get(name, ()),
        "findable": lambda name: name in modules,
        "which": lambda name: f"/usr/bin/{name}" if name in programs else None,
        "run": FakeRun(healthy | dict(answers or {})),
        "disk_free": lambda path: 100 * GIB,
        "writable": lambda path: True,
        "host_memory": lambda: memory,
    }
    return Environment(**machine | fields)


def look(environment: Environment, name: str, **config: Any) -> Finding:
    """Run one check alone, whatever it needs."""
    check = next(check for check in list_checks() if check.name == name)
    asked = DoctorConfig(**config)
    return check.run(Context(environment, asked, frozenset({name})))
