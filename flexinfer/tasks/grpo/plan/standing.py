"""Bytes that are there from the first step to the last: weights, adapter, its copies, optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from flexinfer.config import LoraMode
from flexinfer.kernels.nf4 import BLOCK
from flexinfer.tasks.grpo.plan.model import Outline
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.merged import MergedWeights
from flexinfer.weights.adapters.targets import grouped, listened

OUTER = 256
"""Scales of 4-bit weights that share a scale of their own, where quantisation is double."""
TABLES = (16 + 256 + 1) * 4
"""Bytes of the two code books and the offset that each doubly quantised matrix brings."""
SMALL, STATES_BLOCK = 4096, 256
"""bitsandbytes keeps the states of smaller tensors in fp32; others have a scale per 256."""
FP32 = 4


def weight_bytes(model: Outline) -> int:
    """Return the bytes of the loaded module: parameters once, buffers; 4-bit ones as stored."""
    inner = {f"{name}.weight": linear for name, linear in model.linears.items()}
    packed = {f"{name}.weight" for name in model.packed}
    total = model.fixed_bytes
    for name, parameter in model.module.named_parameters():
        if name in packed and name in inner:
            total += _nf4_bytes(parameter.numel(), model.double)
        else:
            total += parameter.numel() * parameter.element_size()
    return total


def _nf4_bytes(count: int, double: bool) -> int:
    """Return the bytes of a 4-bit matrix as bitsandbytes keeps it."""
    blocks = count // BLOCK
    if not double:
        return count // 2 + FP32 * (blocks + 16)
    return count // 2 + blocks + FP32 * -(-blocks // OUTER) + TABLES


def adapter_tensors(model: Outline, rank: int) -> Iterator[int]:
    """Yield the number of elements of each A [rank, in] and B [out, rank] that PEFT makes."""
    for linear in model.linears.values():
        yield rank * linear.in_features
        yield linear.out_features * rank


def adapter_bytes(model: Outline, rank: int) -> int:
    """Return the bytes of the trained adapter: PEFT keeps it in fp32, whatever the base."""
    return FP32 * sum(adapter_tensors(model, rank))


def optimizer_bytes(model: Outline, rank: int, optim: str) -> int:
    """Return the bytes of the two moments of each element, in fp32 or 8-bit, and of step counts."""
    sizes = list(adapter_tensors(model, rank))
    if "8bit" not in optim:
        return sum(2 * FP32 * size + FP32 for size in sizes)
    return sum(map(_states_8bit, sizes))


def _states_8bit(size: int) -> int:
    """Return the bytes of the moments of one tensor in bitsandbytes' 8-bit optimizers."""
    if size < SMALL:
        return 2 * FP32 * size
    return 2 * (size + FP32 * -(-size // STATES_BLOCK))


class Inference:
    """The engine's own weights over a model: exact shapes, on the meta device."""

    def __init__(self, model: Outline, rank: int, mode: LoraMode | None) -> None:
        """See what an engine serves, all of it under LoRA of `rank`; `mode` None chooses."""
        self.decoder, self._source = listened(model.module)
        self._model, self._rank = model, rank
        self._targets = dict(self._source.heard)
        self.mode: LoraMode = mode or ("runtime" if model.packed else "merged")

    @property
    def n_bytes(self) -> int:
        """Bytes beside the trainer's: merged or side weights, the fp32 adapter that was read."""
        read = FP32 * self._rank * sum(map(sum, self._targets.values()))
        own = self._side_bytes() if self.mode == "runtime" else self._merged_bytes()
        return own + read + self._scale_bytes()

    def _merged_bytes(self) -> int:
        """Return the bytes of the merged copies, laid out without memory."""
        empty = partial(torch.empty, dtype=torch.float32, device="meta")
        pairs = {
            name: Pair(empty(self._rank, columns), empty(rows, self._rank), 1.0)
            for name, (rows, columns) in self._targets.items()
        }
        return MergedWeights(self._source, tuple(self._targets), Adapter("plan", pairs)).n_bytes

    def _side_bytes(self) -> int:
        """Return the bytes of the side paths: one A and one B over all the ranks of a group."""
        total = 0
        for names in grouped(self._targets):
            shapes = [self._targets[name] for name in names]
            ranks, columns = self._rank * len(names), shapes[0][1]
            total += ranks * (columns + sum(rows for rows, _ in shapes))
        return total * self._model.dtype.itemsize

    def _scale_bytes(self) -> int:
        """Return the bytes of 4-bit scales that are undone from their double quantisation."""
        if not self._model.double:
            return 0
        packed = (self._model.linears[name] for name in self._model.packed)
        return sum(FP32 * (x.in_features * x.out_features // BLOCK) for x in packed)
