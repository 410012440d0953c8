"""The most bytes of tensors that were alive at once while something ran."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Watches every operation; `peak` is in bytes, meta tensors aside."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, out)):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                storage = leaf.untyped_storage()
                reference = StorageWeakRef(storage)
                self._seen[reference.cdata] = (reference, storage.nbytes())
        self._seen = {k: v for k, v in self._seen.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._seen.values()))
        return out
