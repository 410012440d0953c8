"""A leaf of 4-bit NF4 weights: plain PyTorch, the oracle of the fused kernel.

Format (Dettmers et al. 2023, "QLoRA", appendix E): a weight is one of 16 values times the largest
magnitude of its block of 64 along the inputs; of two weights in a byte the first is the high half.

Shape letters: N outputs, K inputs, G blocks a row (K / 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.linear import Dense

BLOCK = 64
"""Weights that share an absmax."""
CODE = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The 16 values, each exact in fp32."""


class Nf4(NamedTuple):
    """y = x dequant(W)^T: `packed` uint8 [N, K / 2], `absmax` fp32 [N, G], `code` fp32 [16].

    `dtype` is what weights are rounded to and multiplied in; `bias` is [N] or None.
    """

    packed: Tensor
    absmax: Tensor
    code: Tensor
    dtype: torch.dtype
    bias: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return self.packed.shape[0]

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return 2 * self.packed.shape[1]

    def weight(self) -> Tensor:
        """Return dequant(W) [N, K]: code times absmax in fp32, rounded once to `dtype`."""
        return dequantised(self.packed, self.absmax, self.code).to(self.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., K] to [..., N] in the dtype of `x`, multiplying in `dtype`."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return F.linear(x.to(self.dtype), self.weight(), bias).to(x.dtype)


Matrix = Dense | Nf4
"""A leaf that is a matrix, plain or quantised: what an adapter can be brought in over."""


def dequantised(packed_NK: Tensor, absmax_NG: Tensor, code: Tensor) -> Tensor:
    """Return code times absmax as fp32 [N, K]; one look-up serves the two weights of a byte."""
    (rows, half), blocks = packed_NK.shape, absmax_NG.shape[1]
    pairs = torch.stack((code.repeat_interleave(16), code.repeat(16)), 1)
    values = F.embedding(packed_NK.int(), pairs)
    scaled = values.view(rows, blocks, 2 * half // blocks) * absmax_NG[:, :, None]
    return scaled.view(rows, 2 * half)


def unnested(
    quantised: Tensor, nested_absmax: Tensor, nested_code: Tensor, offset: Tensor, block: int
) -> Tensor:
    """Return absmax in fp32 from double quantisation: nested code times nested absmax, plus offset.

    `quantised` is uint8, any shape; `nested_absmax` fp32, one for `block` of them in a row;
    `nested_code` fp32 [256]; `offset` fp32 scalar.
    """
    flat = quantised.flatten()
    values = F.embedding(flat.int(), nested_code[:, None]).flatten()
    scales = nested_absmax.repeat_interleave(block)[: flat.numel()]
    return (values * scales + offset).view(quantised.shape)


def stacked(
    members: Sequence[Nf4],
    packed_NK: Tensor | None,
    absmax_NG: Tensor | None,
    bias_N: Tensor | None,
) -> Nf4:
    """Return members of one input as one leaf, their rows one after the other.

    `packed_NK` and `absmax_NG` are views over those of all members where they lie in one buffer,
    else None: then they are copied. `bias_N` is such a view, None where no member has a bias.
    """
    first = members[0]
    assert all(member.dtype == first.dtype for member in members), "members of one dtype"
    whole = torch.cat([member.packed for member in members]) if packed_NK is None else packed_NK
    if absmax_NG is None:
        absmax_NG = torch.cat([member.absmax for member in members])
    return Nf4(whole, absmax_NG, first.code, first.dtype, bias_N)
