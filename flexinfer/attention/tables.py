"""The page pool's mirror on the device, at fixed addresses so that captured graphs stay valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexinfer.core.pages import PageWrite


def upload(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy a host array to `device` without waiting (through pinned memory on CUDA)."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


class PageTables:
    """Which page holds which tokens.

    `table` is int32 [slots + 1, columns]: the page of tokens [column * page, (column + 1) * page)
    of a slot; the last row is the pad slot and points at scratch page 0 throughout.
    `logical` is int32 [n_pages]: the column at which a page stands (the same in every row that
    shares it).
    """

    def __init__(self, slots: int, columns: int, n_pages: int, device: torch.device) -> None:
        """Allocate both, all zeros."""
        self.pad_slot = slots
        self.table = torch.zeros(slots + 1, columns, dtype=torch.int32, device=device)
        self.logical = torch.zeros(n_pages, dtype=torch.int32, device=device)

    def apply(self, writes: Sequence[PageWrite]) -> None:
        """Carry out a step's page writes, in stream order."""
        if not writes:
            return
        slot, column, page = np.array(writes, dtype=np.int64).T
        place = slot * self.table.shape[1] + column
        # One copy for all, in the dtypes that indexing wants: every small kernel delays the step.
        values = np.concatenate((page, column)).astype(np.int32).view(np.int64)
        packed = upload(np.concatenate((place, page, values)), self.table.device)
        count = len(writes)
        pages, columns = packed[2 * count :].view(torch.int32).view(2, count)
        self.table.view(-1)[packed[:count]] = pages
        self.logical[packed[count : 2 * count]] = columns
