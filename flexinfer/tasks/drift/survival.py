"""How much of an adapter survives its merge: rounding to the working dtype swallows small deltas.

A bf16 weight of 0.02 has neighbours 1e-4 away, and a fresh adapter's delta is smaller than that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from flexinfer.engine.engine import Engine
from flexinfer.kernels.linear import Dense
from flexinfer.tasks.reference.linears import dense_weight, linears


class Survival(NamedTuple):
    """Of one linear map: the fraction of its delta that is `kept`, and what rounding can keep.

    kept = <W' - W, D> / <D, D> in fp32 with D = scale B A; `attainable` is the same of W + D summed
    in fp32 and rounded once to the working dtype.
    """

    name: str
    kept: float
    attainable: float


@torch.no_grad()
def survivals(engine: Engine, module: nn.Module) -> tuple[Survival, ...]:
    """Measure every merged linear map whose delta is not zero; none without merged weights."""
    held, bases = engine.machinery.weights, linears(module)
    if held.weights is None or held.adapter is None:
        return ()
    found = []
    for name, pair in sorted(held.adapter.pairs.items()):
        leaf = held.weights.leaf(name)
        if isinstance(leaf, Dense):
            base = dense_weight(bases[name][1])
            delta = pair.scale * (pair.b.float() @ pair.a.float())
            if float(delta.abs().max()) > 0:
                best = (base.float() + delta).to(leaf.weight.dtype)
                kept = _kept(leaf.weight, base, delta)
                found.append(Survival(name, kept, _kept(best, base, delta)))
    return tuple(found)


def _kept(weight: Tensor, base: Tensor, delta: Tensor) -> float:
    """Return the change of a weight projected on the delta, as a fraction of it."""
    change = weight.float() - base.float()
    return float(
        (change * delta).sum(dtype=torch.float64) / (delta * delta).sum(dtype=torch.float64)
    )
