"""Bytes that come and go: KV and working space of a rollout; gradients and activations of training.

A rollout and a training pass never run at once: the larger one counts. KV goes back in between
where the engine sleeps, else it is there throughout.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from torch import nn

from flexinfer.attention.cache import bytes_per_page
from flexinfer.config import EngineConfig
from flexinfer.engine.requests.limits import limits
from flexinfer.engine.setup import PAGE_SIZE
from flexinfer.models.decoder import Decoder
from flexinfer.tasks.grpo.plan.batch import BatchPlan
from flexinfer.tasks.grpo.plan.model import Outline

FP32 = 4
HEAD_ROWS, HEAD_COLUMNS = 4096, 32768
"""The largest tile of logits that exists while the loss is computed (TRL's chunked head)."""
SAMPLING = 3
"""Copies of the logits of the sampled rows, in fp32."""


@dataclass(frozen=True, kw_only=True)
class KV:
    """The cache of an engine: `wanted` and `least` (one sequence) in bytes, scratch page included.

    `sequences` run at once, of up to `longest` tokens; a page has `page` tokens. `spare` are pages
    beside those.
    """

    page_bytes: int
    page: int
    longest: int
    sequences: int
    spare: int = 0

    @property
    def columns(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.longest // self.page)

    @property
    def wanted(self) -> int:
        """Bytes for all sequences at their longest."""
        return (self.sequences * self.columns + 1 + self.spare) * self.page_bytes

    @property
    def least(self) -> int:
        """Bytes for one sequence: an engine does not start with less."""
        return (self.columns + 1 + self.spare) * self.page_bytes

    def holds(self, n_bytes: float) -> int:
        """Return how many sequences of the longest fit into so many bytes."""
        pages = int(n_bytes // self.page_bytes) - 1 - self.spare
        return max(0, min(self.sequences, pages // self.columns))


def kv_of(model: Outline, decoder: Decoder, engine: EngineConfig, longest: int) -> KV:
    """Return the cache that an engine plans for; raises UsageError beyond the model's positions."""
    usual = PAGE_SIZE[model.device.type]
    length = engine.max_seq_length or longest
    found = limits(length, engine.page_size, usual, model.positions, model.name)
    page_bytes = bytes_per_page(decoder.specs, found.page, model.dtype)
    return KV(
        page_bytes=page_bytes,
        page=found.page,
        longest=found.longest,
        sequences=engine.max_batch_size,
    )


def prefill_bytes(model: Outline, engine: EngineConfig, prompt_tokens: int) -> int:
    """Estimate the working space of a rollout: one prefill step's widest layer, sampled rows."""
    tokens = min(engine.prefill_tokens, prompt_tokens)
    wide = max(linear.out_features for linear in model.linears.values())
    hidden, vocab = model.config["hidden_size"], model.config["vocab_size"]
    widest = (3 * wide + 8 * hidden) * model.dtype.itemsize
    return int(tokens * widest + SAMPLING * engine.max_batch_size * vocab * FP32)


def layer_bytes(model: Outline) -> list[int]:
    """Estimate what each layer keeps for its backward pass, in bytes a token.

    Inputs and outputs of its linear maps, and in fp32 the hidden state at each norm and at both
    sums. The linear maps' share in attention is that of a kernel which keeps no scores.
    """
    found: dict[str, int] = defaultdict(int)
    hidden, size = model.config["hidden_size"], model.dtype.itemsize
    for name, module in model.module.named_modules():
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer is None:
            continue
        if isinstance(module, nn.Linear):
            found[layer[1]] += size * (module.in_features + module.out_features)
        elif "norm" in name.rpartition(".")[2]:
            found[layer[1]] += FP32 * hidden
    return [int(n_bytes + 2 * FP32 * hidden) for n_bytes in found.values()]


def kept_bytes(model: Outline, checkpointing: bool) -> int:
    """Estimate what a forward pass keeps until its backward pass, in bytes a token."""
    hidden, per_layer = int(model.config["hidden_size"]), layer_bytes(model)
    last = 2 * FP32 * hidden
    if not checkpointing:
        return sum(per_layer) + last
    inputs = hidden + (model.config.get("hidden_size_per_layer_input") or 0)
    return int(len(per_layer) * inputs * model.dtype.itemsize + last)


def activation_bytes(model: Outline, batch: BatchPlan, checkpointing: bool) -> int:
    """Estimate the activations of a training pass at their peak, with the loss's tile of logits.

    With checkpointing one layer at a time is computed anew, with the gradients of what it keeps.
    """
    again = 2 * max(layer_bytes(model)) if checkpointing else 0
    tokens = batch.tokens_per_pass
    tile = min(tokens, HEAD_ROWS) * min(model.config["vocab_size"], HEAD_COLUMNS)
    head = tile * model.dtype.itemsize + tokens * FP32 * model.config["hidden_size"]
    return int(tokens * (kept_bytes(model, checkpointing) + again) + head)
