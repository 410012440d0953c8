"""Tunes the own kernels to a device for a model, once, and keeps the tiles for later processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from flexinfer.config import Report, quiet
from flexinfer.engine.forms import obstacle_of
from flexinfer.engine.memory import memory_told
from flexinfer.errors import EnvironmentUnfit
from flexinfer.models.catalog import build_decoder

TUNING = ("tuning", "leave the device to this process, or choose a smaller --model")


def tune_module(module: nn.Module, report: Report = quiet) -> tuple[str, ...]:
    """Measure tiles for the shapes of a model on the device of its weights, and store them.

    Returns what was done, for the user. Raises EnvironmentUnfit where the own kernels cannot run,
    WriteFailed where the tiles cannot be kept, NotEnoughMemory.
    """
    weight, decoder = next(module.parameters()), build_decoder(module)
    if (obstacle := obstacle_of(decoder, weight)) is not None:
        raise EnvironmentUnfit(f"--tune has no own kernels to measure: {obstacle}")
    from flexinfer.engine.shapes import shapes_of
    from flexinfer.kernels.fast.tiles.store import check_writable, write
    from flexinfer.kernels.fast.tuning.trials import CudaTimer
    from flexinfer.kernels.fast.tuning.tune import tune

    device = torch.cuda.get_device_name(weight.device)
    check_writable(device)
    started = time.perf_counter()
    with torch.no_grad(), memory_told(*TUNING):
        shapes = shapes_of(decoder, weight.device)
        with closing(CudaTimer(weight.device, weight.dtype)) as timer:
            tuned = tune(shapes, timer.processor, timer, report)
    path = write(device, tuned.entries, datetime.now(UTC).date().isoformat())
    seconds = time.perf_counter() - started
    return (
        f"tuning: {tuned.trials} trials in {seconds:.0f} s, {tuned.failed} of them of tiles that "
        f"do not run on {device}; {_tally(tuned.entries)}; kept in {path}",
    )


def _tally(entries: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Say how many products cuBLAS keeps."""
    products = [
        tile
        for kind in ("matmul", "whole", "gated", "nf4", "nf4-whole")
        for measured in entries.get(kind, {}).values()
        for tile in measured.values()
    ]
    return f"cuBLAS keeps {products.count(None)} of {len(products)} products"
