"""How many CPU threads a tiny model is served on: one, for threads that wait cost it more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

SMALL = 20_000_000
"""Below this many parameters a layer's work is shorter than waking and awaiting a second thread."""
VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def own_threads(module: nn.Module | Any | None) -> Iterator[tuple[str, ...]]:
    """Keep torch to one thread while a small `module` on a CPU is served; yield what to say of it.

    Threads of OpenMP wait for each other by spinning, so one busy core makes a tiny model many
    times slower. Whoever sets OMP_NUM_THREADS has decided; on leaving all is as it was.
    """
    if VARIABLE in os.environ or not _is_small(module):
        yield ()
        return
    import torch

    before = torch.get_num_threads()
    if before == 1:
        yield ()
        return
    torch.set_num_threads(1)
    try:
        yield (f"threads: 1 (a model this small is no faster on more; {VARIABLE} overrides)",)
    finally:
        torch.set_num_threads(before)


def _is_small(module: nn.Module | Any | None) -> bool:
    """Tell whether a module lies on a CPU and has few parameters (none: there is no telling)."""
    parameters = [] if module is None else list(module.parameters())
    count = sum(p.numel() for p in parameters)
    return 0 < count < SMALL and all(p.device.type == "cpu" for p in parameters)
