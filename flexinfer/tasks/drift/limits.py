"""How far log-probabilities may be apart: the one table of limits, and where each comes from.

Two right computations in one dtype differ by its rounding, and how much that is depends on the
model: it is measured on the spot. The yardstick is how far the Hugging Face module, computing in
the working dtype as the trainer does, is off the same module computed a dtype wider (in fp64 for
fp32, else in fp32) with the weights that the rollout is to have. Where an adapter is merged those
are W + scale B A rounded once to the working dtype, so the yardstick holds what the merge rounds
away too. A perfect rollout would be off the trainer by the yardstick; a right one adds as much of
its own, since it rounds in other places. A limit is a multiple of the yardstick, and never below
the dtype's floor.

| limit | floor in fp32, fp16, bf16 | multiple | where from |
|---|---|---|---|
| mean gap (nats) | 1e-4, 2e-3, 0.02 | 2 | parity in fp32; rounding a logit of 8 |
| largest gap (nats) | 1e-4, 8e-3, 0.08 | 4 | the same; extremes of few tokens scatter |
| k3 KL (nats) | the mean gap's, squared | 4 | k3 is about d**2 / 2 |
| margin where ids may part (logits) | one ulp of the largest logit | 2 x 1.5 | error of two runs |
| effect of the adapter (nats) | 1e-3 | - | ten times what fp32 may round |
| part of a delta that a merge keeps | - | +- 0.01 | what rounding the sum once keeps |

The margin is a multiple of the largest error of a margin that the working dtype made in the module
itself. Between two batches of one engine the largest gap counts, with the module's own error as the
yardstick; under --batch-invariant it must be 0.

All other checks compare bits and have no limit but equality.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Floors(NamedTuple):
    """Least limits of a dtype, in nats."""

    mean_gap: float
    max_gap: float


FLOORS: Mapping[str, Floors] = {
    "float32": Floors(1e-4, 1e-4),
    "float16": Floors(2e-3, 8e-3),
    "bfloat16": Floors(0.02, 0.08),
}
"""fp32: parity with the trainer. Halves: rounding the logits alone, u * 8 / 2 to u * 8 of unit
round-off u = 2**-11 (fp16) or 2**-8 (bf16), on average; four times that at most."""
TIMES_MEAN, TIMES_MAX, TIMES_K3 = 2.0, 4.0, 4.0
"""Multiples of the yardstick; k3 is of the second order."""
TIMES_NOISE = 2.0
"""Where two runs may choose differently: each is off by the noise (of reference.forced) at most."""
EFFECT = 1e-3
"""Nats by which an adapter must change some log-probability."""
KEPT = 0.01
"""How far the fraction of a delta that a merge keeps may be off what rounding to nearest keeps."""


class Limits(NamedTuple):
    """What gaps may be, in nats; `margin` is in logits."""

    mean_gap: float
    max_gap: float
    k3: float
    margin: float


def limits(dtype: str, mean_gap: float, max_gap: float, k3: float, noise: float) -> Limits:
    """Return the limits for a yardstick of those gaps and a noise of margins in logits."""
    floor = FLOORS[dtype]
    return Limits(
        max(floor.mean_gap, TIMES_MEAN * mean_gap),
        max(floor.max_gap, TIMES_MAX * max_gap),
        max(floor.mean_gap**2, TIMES_K3 * k3),
        TIMES_NOISE * noise,
    )
