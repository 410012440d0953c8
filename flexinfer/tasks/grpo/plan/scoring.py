"""How many held-out problems are answered at once: a small step must not make them wait.

A step of two completions wants a batch of two; hundreds of held-out problems in batches of two take
minutes before the first step. So the batch is wider where nobody chose it, as far as memory goes:
the cache of an engine that does not sleep lies beside the trainer from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flexinfer.config import EngineConfig
from flexinfer.engine.memory import SHARE
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.fit import kv_phase, room_for
from flexinfer.tasks.grpo.plan.parts import Setting, parts_of
from flexinfer.tasks.grpo.problems.held_out import shortfall
from flexinfer.tasks.grpo.problems.hub import HUB_SETS
from flexinfer.tasks.grpo.problems.problem_set import Problems

AT_ONCE = 64
"""Held-out problems that are answered at a time, at most, whatever the size of a step."""


def held_out_of(
    config: GrpoConfig, problems: Problems | None, notice: Callable[[str], None] = lambda line: None
) -> int:
    """Return how many of `problems` (None: the hub's) are scored; of those AT_ONCE at most.

    Nobody goes to the hub for it, or measures prompts. `notice` hears where there are fewer than
    --eval-size wants.
    """
    (name, known), wanted = _known_held_out(config, problems), config.eval_size
    found = AT_ONCE if known is None else known
    if wanted is None:
        return found
    if known is not None:
        for line in shortfall(name, known, wanted):
            notice(line)
    return min(found, wanted)


def _known_held_out(config: GrpoConfig, problems: Problems | None) -> tuple[str, int | None]:
    """Return the data set's name and how many problems it holds out, None where the hub knows."""
    if problems is not None:
        return problems.name, len(problems.held_out)
    name = config.dataset.lower()
    return name, 0 if HUB_SETS[name].test is None else None


def needs_more(engine: EngineConfig, held_out: int) -> bool:
    """Whether the batch of a step is smaller than held-out problems want."""
    return engine.max_batch_size < at_once(engine, held_out)


def at_once(engine: EngineConfig, held_out: int) -> int:
    """Return how many of `held_out` problems are to be answered at a time; a step holds them."""
    return min(held_out, AT_ONCE, engine.prefill_tokens)


def widened(setting: Setting, free: float, held_out: int) -> EngineConfig:
    """Return settings with a batch for `held_out` problems, or for as many as fit; never less.

    `free` is what there is, in bytes, before weights are loaded. A --kv-memory that was given
    bounds them, too.
    """
    engine, config = setting.engine, setting.config
    if not needs_more(engine, held_out):
        return engine
    wide = setting._replace(engine=replace(engine, max_batch_size=at_once(engine, held_out)))
    room = room_for(parts_of(wide), kv_phase(config), free) * SHARE
    fits = wide.kv().holds(min(room, engine.kv_memory or room, wide.kv().wanted))
    return replace(engine, max_batch_size=max(engine.max_batch_size, fits))
