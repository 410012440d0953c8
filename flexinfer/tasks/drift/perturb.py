"""Other adapters made from one: moved by noise as a trainer's step would, and without effect."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from flexinfer.weights.adapters.adapter import Adapter, Pair


def moved(adapter: Adapter, noise_scale: float, seed: int) -> Adapter:
    """Return the adapter with Gaussian noise of that standard deviation on all that is trained.

    That is every A and B and every bias; where a bias alone was trained, A and B stay zero. The
    noise is drawn on the host in fp32, so it is the same on every device.
    """
    generator = torch.Generator().manual_seed(seed)

    def noisy(tensor: Tensor) -> Tensor:
        noise = torch.empty(tensor.shape).normal_(0, noise_scale, generator=generator)
        return (tensor.float() + noise.to(tensor.device)).to(tensor.dtype)

    def shifted(pair: Pair) -> Pair:
        bias = None if pair.bias is None else noisy(pair.bias)
        if bias is not None and not pair.a.any():
            return pair._replace(bias=bias)
        return pair._replace(a=noisy(pair.a), b=noisy(pair.b), bias=bias)

    pairs = {name: shifted(pair) for name, pair in sorted(adapter.pairs.items())}
    return replace(adapter, pairs=pairs)


def without_effect(adapter: Adapter) -> Adapter:
    """Return an adapter of the same shapes whose every delta is zero."""
    pairs = {
        name: pair._replace(b=torch.zeros_like(pair.b), bias=None)
        for name, pair in adapter.pairs.items()
    }
    return replace(adapter, pairs=pairs)
