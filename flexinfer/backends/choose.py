"""Which back ends there are, and the only place that turns a back end's name into one."""

from __future__ import annotations

import difflib
from importlib.util import find_spec

from flexinfer.backends.base.protocol import Checkpoint
from flexinfer.config import ModelOptions, Report, quiet
from flexinfer.errors import EnvironmentUnfit, UsageError, install_hint

BACKENDS = ("flex", "hf", "hf-cb", "vllm")


def check_backend(name: str, flag: str = "--backend") -> None:
    """Raise UsageError for an unknown back end, EnvironmentUnfit where its package is missing."""
    if name == "vllm" and find_spec("vllm") is None:
        raise EnvironmentUnfit(f"{flag} vllm: vllm is not installed", hint=install_hint("vllm"))
    if name in BACKENDS:
        return
    near = difflib.get_close_matches(name.lower(), BACKENDS, n=1, cutoff=0.4)
    raise UsageError(
        f"{flag} {name!r} is unknown",
        hint=f"did you mean {near[0]}?" if near else "known: " + ", ".join(BACKENDS),
    )


def load_checkpoint(name: str, options: ModelOptions, report: Report = quiet) -> Checkpoint:
    """Load the weights `options` names for back end `name`; raises as check_backend and load.

    And EnvironmentUnfit where transformers' continuous batching is not the one that hf-cb drives.
    """
    check_backend(name)
    if name == "vllm":
        from flexinfer.backends.vllm.checkpoint import VllmCheckpoint

        return VllmCheckpoint.of(options, report)
    from flexinfer.weights.load import load

    if name == "flex":
        from flexinfer.backends.flex import FlexCheckpoint

        return FlexCheckpoint(load(options, report))
    if name == "hf-cb":
        from flexinfer.backends.huggingface.cb_api import check_continuous_batching

        check_continuous_batching()
    from flexinfer.backends.huggingface.module_checkpoint import ModuleCheckpoint

    return ModuleCheckpoint.of(load(options, report), name)
