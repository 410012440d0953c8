"""`bench --tune`: tune the own kernels before they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from flexinfer.backends.base.protocol import Checkpoint
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.errors import EnvironmentUnfit, UsageError


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


def check_device(options: ModelOptions) -> None:
    """Raise EnvironmentUnfit, before anything is loaded, where no own kernel would run.

    What only the weights and the device themselves tell is left to tune_module.
    """
    import torch

    from flexinfer.attention.choose import triton_obstacle

    device = "cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu"
    width, installed = 4 if options.dtype == "float32" else 2, find_spec("triton") is not None
    if (obstacle := triton_obstacle(device, (8, 0), (), width, installed)) is not None:
        raise EnvironmentUnfit(f"--tune has no own kernels to measure: {obstacle}")


def tune_checkpoint(checkpoint: Checkpoint, report: Report) -> tuple[str, ...]:
    """Tune for a checkpoint's model and device; returns what to tell, raises as tune_module."""
    from flexinfer.engine.tuning import tune_module

    assert checkpoint.module is not None, "flex shows its module"
    return tune_module(checkpoint.module, report)
