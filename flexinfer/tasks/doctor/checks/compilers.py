"""Checks of what compiles kernels: the C++ compiler, and flex_attention over pages."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from flexinfer.attention.choose import decode_options
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.probe import Probe, Row, failure_line
from flexinfer.tasks.doctor.report import Finding, ok, unfit

HEAD_DIMS = (128, 256, 512)
PAGE = 32
"""Tokens of a page in probes/flex.py, and the engine's own on CUDA."""

FLEX_TIMEOUT_S = 420.0
COMPILER_TIMEOUT_S = 60.0
SOURCE = """#include <cstdio>
#include <numeric>
#include <vector>
int main() {
  std::vector<int> v(7);
  std::iota(v.begin(), v.end(), 3);
  std::printf("%d", std::accumulate(v.begin(), v.end(), 0));
}
"""
ANSWER = "42"
LIMITS = {"C++": 1e-3}
"""Largest absolute error on unit Gaussian inputs by kernel; fp32 on a CPU, else bf16."""

BF16_LIMIT = 0.05
DENSE = "--attention dense runs without it"


def compiler(context: Context) -> Finding:
    """Compile and run a small C++ program with the compiler that torch.compile will take."""
    wanted = context.environment.variables.get("CXX", "g++")
    name, *options = shlex.split(wanted) or ["g++"]
    path = context.environment.which(name)
    needed = bool(context.torch.devices)
    why = "torch.compile and Triton build kernels with it"
    why += "" if needed else f"; on a CPU {DENSE}"
    if path is None:
        other = context.environment.which("clang++")
        fix = "export CXX=clang++" if other else "install g++, or set CXX to a C++ compiler"
        return unfit(needed, f"no {name}", why, fix)
    trouble = _try(context, [path, *options])
    if trouble is not None:
        fix = "reinstall the compiler with its C++ library, or set CXX to another one"
        return unfit(needed, f"{path}: {trouble}", why, fix)
    return ok(f"{path} compiles and runs")


def _try(context: Context, command: list[str]) -> str | None:
    """Return what went wrong in compiling and running SOURCE, None if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "answer.cpp"), Path(folder, "answer")
        source.write_text(SOURCE)
        for argv in ([*command, "-O1", "-o", str(program), str(source)], [str(program)]):
            outcome = context.environment.run(
                argv,
                timeout_s=COMPILER_TIMEOUT_S,
                variables=context.environment.variables,
                on_line=lambda line: None,
            )
            if (line := failure_line(outcome, COMPILER_TIMEOUT_S)) is not None:
                return line
        return None if outcome.stdout.strip() == ANSWER else f"printed {outcome.stdout!r}"


def flex(head_dim: int) -> Callable[[Context], Finding]:
    """Return the check of flex_attention at `head_dim`; all of a run share one process."""
    return lambda context: _judge(context, head_dim, _flex_probe(context))


def _flex_probe(context: Context) -> Probe:
    """Compile all head dims of this run one after the other, telling how far it is."""
    dims = [str(dim) for dim in HEAD_DIMS if f"flex-{dim}" in context.selected]

    def tell(row: Row) -> None:
        following = dict(pairwise(dims)).get(str(row.get("head_dim")))
        if following is not None:
            context.say(f"compiling flex_attention at head_dim {following}")

    options = {dim: decode_options(int(dim), PAGE, True, {}) for dim in dims}
    arguments = (json.dumps(options if context.torch.devices else {}), *dims)
    first = "the first compile of a process takes up to half a minute"
    return context.device_probe(
        "flex",
        *arguments,
        timeout_s=FLEX_TIMEOUT_S,
        on_row=tell,
        stage=f"compiling flex_attention at head_dim {dims[0]}; {first}",
    )


def _judge(context: Context, head_dim: int, probe: Probe) -> Finding:
    """Turn one row of the probe into a verdict."""
    needed = bool(context.torch.devices)
    row = next((row for row in probe.rows if row.get("head_dim") == head_dim), None)
    trouble = (probe.error or "no result") if row is None else row.get("failed")
    why = "generation on CUDA compiles it" if needed else f"on a CPU {DENSE}"
    fix = "see the compiler and headers lines; clear the compile cache; try another torch"
    if row is None or trouble is not None:
        return unfit(needed, f"does not compile: {trouble}", why, fix)
    if not row["error"] <= LIMITS.get(row["kernel"], BF16_LIMIT):
        # Un-compiled flex_attention ignores the page list: wrong text, without an error.
        why = "it does not read the pages it is given, as when it is not compiled at all"
        fix = "unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE; try another torch"
        return unfit(needed, f"wrong by {row['error']:.2g}", why, fix)
    return ok(f"{row['kernel']} kernel in {row['seconds']:.1f} s, error {row['error']:.1g}")
