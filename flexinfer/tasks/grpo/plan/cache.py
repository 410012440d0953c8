"""How much KV an engine takes that keeps it while the adapter is trained: what training leaves."""

from __future__ import annotations

from dataclasses import replace

from flexinfer.config import EngineConfig
from flexinfer.core.sizes import human
from flexinfer.engine.memory import SHARE
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.fit import kv_phase, room_for
from flexinfer.tasks.grpo.plan.parts import Setting, parts_of


def is_open(engine: EngineConfig, config: GrpoConfig) -> bool:
    """Whether a cache lies beside the trainer whose size nobody chose."""
    return engine.kv_memory is None and kv_phase(config) == "always"


def bounded(setting: Setting, free: float) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with a KV cache that leaves room for training, and what to say of it.

    An engine takes what is free before the trainer has taken its part. `free` is what there is, in
    bytes, before weights are loaded. Nothing changes where all sequences fit at their longest, nor
    where not one does: training is estimated, and no cache would help. But vLLM is always told: it
    would take nearly all there is.
    """
    engine, told = setting.engine, setting.config.rollout == "vllm"
    if not is_open(engine, setting.config):
        return setting, ()
    kv, room = setting.kv(), room_for(parts_of(setting), "always", free)
    if kv.least <= room < kv.wanted:
        size = max(int(room * SHARE), kv.least)
        line = f"KV cache: {human(size)}, which leaves room for training; the whole batch at its "
        lines: tuple[str, ...] = (f"{line}longest would take {human(kv.wanted)}",)
    elif told:
        size, lines = kv.wanted if room >= kv.wanted else kv.least, ()
    else:
        return setting, ()
    return setting._replace(engine=replace(engine, kv_memory=size)), lines
