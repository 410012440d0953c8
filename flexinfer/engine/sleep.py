"""Between two calls an engine can give the memory of its KV cache back, and takes it again."""

from __future__ import annotations

import torch

from flexinfer.engine.memory import memory_told
from flexinfer.engine.steps.loop import Machinery

WAKING = ("taking the KV cache again", "leave more memory free, or lower --kv-memory")


def sleep(machinery: Machinery) -> None:
    """Free the KV cache; what it held is forgotten."""
    if machinery.device.type == "cuda":
        torch.cuda.synchronize()
    machinery.programs.cache.release()
    if machinery.device.type == "cuda":
        torch.cuda.empty_cache()


def wake(machinery: Machinery) -> None:
    """Take the KV cache again where it was given back; raises NotEnoughMemory.

    Captured graphs hold addresses: they are captured anew where the cache lies elsewhere now.
    """
    with memory_told(*WAKING):
        moved = machinery.programs.cache.restore()
    if moved:
        machinery.runner.forget()
        machinery.prefiller.forget()
