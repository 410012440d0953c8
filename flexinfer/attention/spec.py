"""What one layer's attention is: the only thing a walker and an attention back end agree on.

Shape letters: T tokens of a step, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """Attention of layer `index`; `window` None is full, else a query sees `q - kv < window`.

    `kv_layer` is the layer whose cache is read: its own index, or an earlier one (KV sharing).
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    kv_layer: int

    @property
    def owns_kv(self) -> bool:
        """Whether this layer writes a cache of its own."""
        return self.kv_layer == self.index


class LayerAttend(Protocol):
    """The hole of one layer: keys and values are stored, then queries attend.

    A layer that reads another one's cache stores nothing. See kernels.heads.KVStore.
    """

    def store(self, k_TGD: Tensor, v_TGD: Tensor, /) -> None:
        """Keep the step's keys and values."""
        ...

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the K and V pools [1, G, N, D] and the int64 [T] rows of them to write to."""
        ...

    def __call__(self, q_THD: Tensor, /) -> Tensor:
        """Return [T, H, D]."""
        ...


class Attend(Protocol):
    """The hole of one step: `attend(spec)` binds a layer to its cache, mask and addresses."""

    def __call__(self, spec: LayerSpec, /) -> LayerAttend:
        """Return the hole of the layer that `spec` describes."""
        ...

    def kept(self) -> Attend:
        """Return the same step narrowed to the rows whose logits are wanted (`keep`)."""
        ...
