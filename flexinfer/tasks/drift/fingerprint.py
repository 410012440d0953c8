"""sha256 of what an engine multiplies with and of what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flexinfer.engine.engine import Engine
from flexinfer.tasks.drift.gaps import Rollout
from flexinfer.tasks.reference.linears import linears

CHUNK = 1 << 26
"""Bytes that are copied to the host at a time."""


def weights_sha(engine: Engine, module: nn.Module) -> str:
    """Return the sha256 of the inference weights of every linear map that an adapter may change.

    Where the engine keeps none of its own, those of the borrowed module count.
    """
    held, bases = engine.machinery.weights, linears(module)
    whole = hashlib.sha256()
    for name in sorted(held.targets):
        leaf: Any = None if held.weights is None else held.weights.leaf(name)
        found = bases[name][1].weight if leaf is None else leaf
        for tensor in _tensors(found):
            whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            for part in torch.split(raw, CHUNK):
                whole.update(part.cpu().numpy().tobytes())
    return whole.hexdigest()


def inference_sha(weights: str, rollout: Rollout) -> str:
    """Return the sha256 over the hash of inference weights and every id and log-probability."""
    whole = hashlib.sha256(weights.encode())
    for sample in rollout:
        whole.update(f"{sample.token_ids} {[x.hex() for x in sample.logprobs]}\n".encode())
    return whole.hexdigest()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a leaf, which is a tuple of tensors and leaves."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
