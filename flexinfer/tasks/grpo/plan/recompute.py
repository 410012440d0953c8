"""Whether a backward pass computes activations anew: where they would not fit, and only there."""

from __future__ import annotations

import math
from dataclasses import replace

from flexinfer.core.sizes import human
from flexinfer.tasks.grpo.plan.fit import Part, kv_phase, needed
from flexinfer.tasks.grpo.plan.parts import Setting, parts_of

SPARE = 0.75
"""Part of the free memory that a run may plan for with all activations kept: they are estimated."""


def settled(setting: Setting, free: float) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with gradient checkpointing on or off, and what to say of a choice.

    Nothing is chosen where the user has. `free` is what there is, in bytes, before weights are
    loaded.
    """
    config = setting.config
    if config.gradient_checkpointing is not None:
        return setting, ()
    kept = setting._replace(config=replace(config, gradient_checkpointing=False))
    size = min(setting.kv().wanted, setting.engine.kv_memory or setting.kv().wanted)
    cache = Part("KV cache", kv_phase(config), size)
    wanted = needed(parts_of(kept), cache)
    figures = f"with activations kept {human(wanted)} are needed"
    if math.isinf(free):
        figures += f", else {human(needed(parts_of(_on(setting)), cache))}"
    else:
        figures += f" of {human(free)}"
    fits = wanted <= SPARE * free
    line = f"gradient checkpointing: {'off' if fits else 'on'} ({figures})"
    return kept if fits else _on(setting), (line,)


def _on(setting: Setting) -> Setting:
    """Return the setting with gradient checkpointing."""
    return setting._replace(config=replace(setting.config, gradient_checkpointing=True))
