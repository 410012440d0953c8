"""The floor of a decode step: bytes that must be read over the bandwidth the device gives.

Bytes are as stored. Not counted: activations, the embedding rows that are gathered (kilobytes),
and the scales of 4-bit weights.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from flexinfer.attention.spec import LayerSpec

GATHERED = "embed_tokens_per_layer.weight"
COPY_BYTES, COPIES, RUNS = 2**30, 10, 5


@dataclass(frozen=True)
class LayerRead:
    """Bytes one layer reads for one token of context, at most `window` tokens; who wrote them."""

    bytes_per_token: int
    window: int | None
    owned: bool


@dataclass(frozen=True)
class StepCost:
    """What one decode step must read: all `weight_bytes`, and each layer's share of the KV cache.

    A layer that shares another's KV is counted: it reads that cache once more.
    """

    weight_bytes: int
    layers: tuple[LayerRead, ...]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes a token takes in the cache: only layers that own KV."""
        return sum(layer.bytes_per_token for layer in self.layers if layer.owned)

    def kv_read(self, first: int, last: int) -> int:
        """Bytes one sequence reads over the decode steps of contexts [first, last)."""
        return sum(
            layer.bytes_per_token * _sum_capped(first, last, layer.window) for layer in self.layers
        )


def step_cost(module: PreTrainedModel, specs: Sequence[LayerSpec]) -> StepCost:
    """Read weights from the parameters' shapes and KV from the layers' (meta tensors will do)."""
    size = next(p.element_size() for p in module.parameters() if p.is_floating_point())
    layers = tuple(
        LayerRead(2 * spec.kv_heads * spec.head_dim * size, spec.window, spec.owns_kv)
        for spec in specs
    )
    return StepCost(_weight_bytes(module, specs), layers)


def decode_bytes(
    cost: StepCost, prompts: Sequence[int], news: Sequence[int], batch_size: int
) -> int:
    """Bytes that decoding must read for sequences of those prompt and new token counts.

    The first new token comes from prefill. The weights are read once a step, and there are at
    least as many steps as the longest sequence needs, or as full batches of rows take.
    """
    rows = sum(news) - len(news)
    steps = max(max(news, default=1) - 1, -(-rows // batch_size))
    kv = sum(cost.kv_read(p + 1, p + n) for p, n in zip(prompts, news, strict=True))
    return cost.weight_bytes * steps + kv


def copy_bandwidth(device: str) -> float | None:
    """Measure bytes a second of a copy within `device`, read plus written; None but on CUDA.

    Median of 5 runs of 10 copies of 1 GiB (less where memory is short), after as much warm-up.
    """
    if device != "cuda":
        return None
    import torch

    size = min(COPY_BYTES, torch.cuda.mem_get_info()[0] // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = [_copy_seconds(source, target) for _ in range(2 * RUNS)][RUNS:]
    del source, target
    torch.cuda.empty_cache()
    return 2 * size * COPIES / median(seconds)


def bandwidth_apart() -> float | None:
    """Measure `copy_bandwidth` in a process that ends then: nothing of it is left on the device."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_own_bandwidth).result()


def _own_bandwidth() -> float | None:
    """Measure the device that torch finds."""
    import torch

    return copy_bandwidth("cuda" if torch.cuda.is_available() else "cpu")


def _weight_bytes(module: PreTrainedModel, specs: Sequence[LayerSpec]) -> int:
    """Sum the parameters a step reads whole; an embedding table counts only as a tied head."""
    tied = module.get_output_embeddings().weight is module.get_input_embeddings().weight
    skip = (GATHERED,) if tied else (GATHERED, "embed_tokens.weight")
    shared = tuple(f"layers.{s.index}.self_attn.{p}" for s in specs if not s.owns_kv for p in "kv")
    return sum(
        _size(p)
        for name, p in module.named_parameters()
        if not name.endswith(skip) and not any(f"{stem}_" in name for stem in shared)
    )


def _size(weight: torch.nn.Parameter) -> int:
    """Return a parameter's bytes: on the meta device a 4-bit one is not packed yet."""
    from flexinfer.models.nf4 import is_4bit

    packed = is_4bit(weight) and weight.is_meta
    return weight.numel() // 2 if packed else weight.numel() * weight.element_size()


def _sum_capped(first: int, last: int, cap: int | None) -> int:
    """Return the sum of min(c, cap) over c in [first, last)."""
    bend = last if cap is None else min(max(cap, first), last)
    return (first + bend - 1) * (bend - first) // 2 + (last - bend) * (cap or 0)


def _copy_seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    """Time COPIES copies, end to end."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(COPIES):
        target.copy_(source)
    torch.cuda.synchronize()
    return time.perf_counter() - start
