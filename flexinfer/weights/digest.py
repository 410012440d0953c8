"""The sha256 of a model's base weights: equal before and after whatever must not touch them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from flexinfer.models.source import is_adapters, plain_name

CHUNK = 1 << 26
"""Bytes that are copied to the host at a time."""


def digest(module: nn.Module) -> str:
    """Return the hex sha256 over names, dtypes, shapes and bytes of every base tensor.

    Parameters and persistent buffers count, in the order of their names, tied ones under each
    name. PEFT's own tensors do not, and its wrapping does not change the result.
    """
    whole = hashlib.sha256()
    for name, tensor in sorted(_base(module), key=lambda item: item[0]):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        raw = tensor.detach().contiguous().flatten().view(torch.uint8)
        for part in torch.split(raw, CHUNK):
            whole.update(part.cpu().numpy().tobytes())
    return whole.hexdigest()


def _base(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name as in the unwrapped model, tensor) without what an adapter added."""
    for name, tensor in module.state_dict().items():
        if not is_adapters(name):
            yield plain_name(name), tensor
