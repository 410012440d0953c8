"""Check of flexinfer itself: which version looks at the machine, and for what."""

from __future__ import annotations

from flexinfer import __version__
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.report import Finding, ok


def version(context: Context) -> Finding:
    """Say the version and the mode that the other lines are for."""
    return ok(f"flexinfer {__version__}, --mode {context.mode}")
