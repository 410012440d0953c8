"""Times tiles on a CUDA device.

A tile whose result is not that of cuBLAS (for attention: of the default tile) is as good as one
that does not run.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.errors import TritonError

from flexinfer.kernels.fast.tuning.benches import Bench, Benches
from flexinfer.kernels.fast.tuning.graph_clock import GraphClock
from flexinfer.kernels.fast.tuning.race import Trial
from flexinfer.kernels.fast.tuning.tune import Processor

TOLERANCE = 0.02
"""Allowed error of a result, relative to its size: several roundings to bf16."""


class CudaTimer:
    """A Timer (see tune.py) of one device; call `close` to give its memory back."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Take the device and the dtype of weights and activations."""
        properties = torch.cuda.get_device_properties(device)
        self.processor = Processor(properties.multi_processor_count, int(properties.major >= 9))
        self._device = device
        self._benches: Benches | None = Benches(device, dtype, properties.L2_cache_size)
        self._last: tuple[tuple[object, ...], Bench] | None = None
        self._clock = GraphClock(device)

    def __call__(self, trial: Trial) -> float | None:
        """Return microseconds of one launch, None for a tile that fails; raises OutOfMemoryError.

        What the device cannot recover from is raised too: every later trial would fail.
        """
        bench = self._bench_of(trial)
        try:
            if not close_to(bench.launch(0, trial.tile), bench.expected):
                return None
            return self._clock(lambda copy: bench.launch(copy, trial.tile), bench.copies)
        except torch.OutOfMemoryError:
            raise
        except (TritonError, RuntimeError):
            torch.cuda.synchronize(self._device)
            return None

    def close(self) -> None:
        """Give weights, graphs and the allocator's memory back."""
        torch.cuda.synchronize(self._device)
        self._last = self._benches = None
        self._clock.close()
        torch.cuda.empty_cache()

    def _bench_of(self, trial: Trial) -> Bench:
        """Return the trial's bench: the last one, if that was of the same shape and rows."""
        assert self._benches is not None, "closed"
        key = trial[:3]
        if self._last is None or self._last[0] != key:
            self._last = None
            self._last = (key, self._benches.build(trial))
        return self._last[1]


def close_to(found: Tensor, expected: Tensor) -> bool:
    """Return whether a result, or the sum of its partial sums, is what it should be."""
    found = found.sum(0) if found.dim() > expected.dim() else found
    error = torch.linalg.vector_norm(found.float() - expected.float())
    return bool(error <= TOLERANCE * torch.linalg.vector_norm(expected.float()))
