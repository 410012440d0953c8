"""A seeded random adapter: something to merge where no trained one is at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.adapter import Adapter, Pair

SCALE = 2.0
"""alpha / r for alpha = 2 r, as most recipes have it."""

STRENGTH = 0.01
"""Standard deviation of a delta, as a fraction of the weight's."""


def random_adapter(
    targets: Mapping[str, tuple[int, int]],
    rank: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Adapter:
    """Return an adapter on all `targets` (out, in); raises UsageError for a rank under 1.

    A weight that keeps the size of its input has a standard deviation of in**-0.5. So a is drawn
    with in**-0.5 and b with STRENGTH / (SCALE * rank**0.5): the delta has STRENGTH * in**-0.5, and
    adds about 1 % to an output. Drawn on the host in fp32, module by module from the seed and the
    module's name: the values depend neither on the device nor on the other targets.
    """
    if rank < 1:
        raise UsageError(f"adapter random:{rank}: the rank must be 1 or more")
    pairs: dict[str, Pair] = {}
    for name, shape in sorted(targets.items()):
        a, b = _draw(name, shape, rank, seed)
        pairs[name] = Pair(a.to(device, dtype), b.to(device, dtype), SCALE)
    notice = f"adapter: random, seed {seed}, on {len(pairs)} modules, rank {rank}, scale {SCALE:g}"
    return Adapter(f"random:{rank}", pairs, (notice,))


def _draw(name: str, shape: tuple[int, int], rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a [rank, in] and b [out, rank] in fp32 on the host."""
    rows, columns = shape
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:7]))
    a = torch.empty(rank, columns).normal_(0, columns**-0.5, generator=generator)
    b = torch.empty(rows, rank).normal_(0, STRENGTH / (SCALE * rank**0.5), generator=generator)
    return a, b
