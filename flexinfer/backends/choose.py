"""Which back ends there are, and the only place that turns a back end's name into one."""

from __future__ import annotations

import difflib

from flexinfer.backends.protocol import Checkpoint
from flexinfer.config import ModelOptions, Report, quiet
from flexinfer.errors import UsageError
from flexinfer.unsupported import lacks, refuse

BACKENDS = ("flex", "hf", "hf-cb", "vllm")


def check_backend(name: str) -> None:
    """Raise UsageError for an unknown back end, EnvironmentUnfit for one that is yet to come."""
    if name in BACKENDS:
        ready = [known for known in BACKENDS if not lacks(f"--backend {known}")]
        refuse(f"--backend {name}", hint="this version has: " + ", ".join(ready))
        return
    near = difflib.get_close_matches(name.lower(), BACKENDS, n=1, cutoff=0.4)
    raise UsageError(
        f"--backend {name!r} is unknown",
        hint=f"did you mean {near[0]}?" if near else "known: " + ", ".join(BACKENDS),
    )


def load_checkpoint(name: str, options: ModelOptions, report: Report = quiet) -> Checkpoint:
    """Load the weights `options` names for back end `name`; raises as check_backend and load."""
    check_backend(name)
    from flexinfer.backends.flex import FlexCheckpoint
    from flexinfer.weights.load import load

    return FlexCheckpoint(load(options, report))
