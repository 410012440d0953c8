"""What a model needs in memory in each mode, as an estimate, and how large a batch fits."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.tasks.doctor.facts.shapes import Shapes
from flexinfer.tasks.doctor.report import Mode

BATCH, TOKENS = 64, 2048
"""The workload that is planned for: sequences, and tokens of each, prompt and answer together."""

PREFILL_TOKENS = 8192
RANK = 32
TRAINED_TOKENS = 1024
CONTEXT_BYTES = 600_000_000
"""The CUDA context, library workspaces and captured graphs."""

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4: 4 bits, an 8-bit scale per 64, a float per 256 scales."""

ADAPTER_BYTES = {"lora": 4, "grpo": 4 + 4 + 2}
"""Per adapter element: fp32 master; in training its gradient and two 8-bit moments too."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes: `fixed` at any batch (weights, adapters, working space), `per_sequence` of KV."""

    fixed: float
    per_sequence: float
    tokens: int

    def needed(self, batch: int = BATCH) -> float:
        """Return the bytes of a batch."""
        return self.fixed + batch * self.per_sequence

    def largest_batch(self, free: float) -> int:
        """Return how many sequences fit into `free` bytes, BATCH at most, 0 if none."""
        return max(0, min(BATCH, int((free - self.fixed) // self.per_sequence)))


def plan(shape: Shapes, mode: Mode, element_bytes: int) -> MemoryPlan:
    """Plan a mode; `element_bytes` is the size of one unquantised weight and cache element."""
    tokens = min(TOKENS, shape.longest)
    return MemoryPlan(
        fixed=weight_bytes(shape, mode, element_bytes) + working_bytes(shape, mode, element_bytes),
        per_sequence=shape.kv_per_token * tokens * element_bytes,
        tokens=tokens,
    )


def weight_bytes(shape: Shapes, mode: Mode, element_bytes: int) -> float:
    """Return bytes of weights: packed in 4-bit; with adapters, a merged copy of the targets too."""
    linear = NF4_BYTES if mode == "4bit" else element_bytes
    total = shape.linear * linear + shape.other * element_bytes
    if mode in ADAPTER_BYTES:
        total += shape.targets * element_bytes + RANK * shape.adapter_row * ADAPTER_BYTES[mode]
    return total


def working_bytes(shape: Shapes, mode: Mode, element_bytes: int) -> float:
    """Return bytes of activations and logits of one step, and of a training step in grpo."""
    wide = 3 * shape.mlp + 8 * shape.hidden
    total = CONTEXT_BYTES + PREFILL_TOKENS * wide * element_bytes + 3 * BATCH * shape.vocab * 4
    if mode == "grpo":
        # Checkpointed hidden states, one layer recomputed, logits with their softmax and gradient.
        states = shape.layers * shape.hidden * element_bytes + 3 * wide * element_bytes
        total += TRAINED_TOKENS * (states + 3 * shape.vocab * 4)
    return total
