"""Check of flexinfer itself: whether this version has what `--mode` asks about."""

from __future__ import annotations

from flexinfer import __version__
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.report import Finding, fail, ok
from flexinfer.unsupported import OF_MODE, lacks


def version(context: Context) -> Finding:
    """Fail for a mode that no command of this version can run, however fit the machine is."""
    feature = OF_MODE.get(context.mode, "")
    if lacks(feature):
        found = f"flexinfer {__version__}: --mode {context.mode} is not in this version"
        why = f"{feature} is yet to come; the other lines say what the machine is fit for"
        return fail(found, why, "--mode bf16 checks what this version runs")
    return ok(f"flexinfer {__version__}, --mode {context.mode}")
