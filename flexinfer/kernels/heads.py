"""From raw projections to attention's operands: norm each head, rotate, store keys and values.

Shape letters: T tokens, H query heads, G kv heads, D head dim, N rows of a KV pool.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from flexinfer.kernels.norms import rms_norm, rms_norm_fp32
from flexinfer.kernels.rope import Rope, apply_rope


class HeadNorms(NamedTuple):
    """Per-head norms of a layer: `q` and `k` weights [D] or None; `v`: norm values, without weight.

    `late`: the weight is applied before rounding (Gemma-4) instead of after it (Qwen3).
    """

    q: Tensor | None
    k: Tensor | None
    v: bool
    eps: float
    late: bool


class KVStore(Protocol):
    """Where a layer's keys and values of this step go."""

    def store(self, k_TGD: Tensor, v_TGD: Tensor, /) -> None:
        """Keep the step's keys and values."""
        ...

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the K and V pools [1, G, N, D] and the int64 [T] rows of them to write to."""
        ...


def heads(
    parts: tuple[Tensor, ...], head_dim: int, norms: HeadNorms, rope: Rope, kv: KVStore
) -> Tensor:
    """Return queries [T, H, D], and store keys and values where there are any.

    `parts` [T, heads * D] are q (another layer's KV is read), q and k (k is also the raw v), or
    q, k and v.
    """
    q, *rest = (part.view(part.shape[0], -1, head_dim) for part in parts)
    q = apply_rope(_normed(q, norms.q, norms), rope)
    if rest:
        k = apply_rope(_normed(rest[0], norms.k, norms), rope)
        kv.store(k, rms_norm_fp32(rest[-1], None, norms.eps) if norms.v else rest[-1])
    return q


def _normed(x: Tensor, weight: Tensor | None, norms: HeadNorms) -> Tensor:
    """Norm every head where there is a weight."""
    if weight is None:
        return x
    return (rms_norm_fp32 if norms.late else rms_norm)(x, weight, norms.eps)
