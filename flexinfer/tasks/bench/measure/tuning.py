"""`bench --tune`: tune the own kernels before they are measured."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.backends.base.protocol import Checkpoint
from flexinfer.config import EngineConfig, Report
from flexinfer.errors import UsageError


def check_tunable(engine: EngineConfig, backends: Sequence[str]) -> None:
    """Raise UsageError, before anything is loaded, where what is tuned would not be measured."""
    clash = None
    if tuple(backends) != ("flex",):
        clash = "--backend " + ", ".join(backends)
    elif engine.attention not in ("auto", "triton"):
        clash = f"--attention {engine.attention}"
    elif engine.decode_kernel_options or engine.prefill_kernel_options:
        clash = "the kernel options of flex_attention"
    if clash is not None:
        raise UsageError(
            f"--tune is of the own kernels, which do not run with {clash}",
            hint="leave one of them out",
        )


def tune_checkpoint(checkpoint: Checkpoint, report: Report) -> tuple[str, ...]:
    """Tune for a checkpoint's model and device; returns what to tell, raises as tune_module."""
    from flexinfer.engine.tuning import tune_module

    assert checkpoint.module is not None, "flex shows its module"
    return tune_module(checkpoint.module, report)
