"""`train-grpo --dry-run`: batch arithmetic and a memory plan, and whether it fits.

For the command line: `plan_run(...) -> Plan`, `render(plan, as_json, width)`, `plan.exit_code`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import NamedTuple

import torch

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.memory import SHARE
from flexinfer.tasks.environment import now
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import batch_plan, chosen
from flexinfer.tasks.grpo.plan.beside import fitted
from flexinfer.tasks.grpo.plan.fit import Part, advice, fitting_kv, kv_phase, needed
from flexinfer.tasks.grpo.plan.model import outline
from flexinfer.tasks.grpo.plan.outcome import Plan
from flexinfer.tasks.grpo.plan.parts import Setting, parts_of
from flexinfer.tasks.grpo.plan.passing import KV
from flexinfer.tasks.grpo.plan.refuse import refuse, refuse_lengths
from flexinfer.tasks.grpo.plan.standing import Inference
from flexinfer.tasks.grpo.plan.text import render
from flexinfer.tasks.grpo.positions import check_positions
from flexinfer.tasks.grpo.problems.problem_set import Problems
from flexinfer.tasks.grpo.processes import sharing
from flexinfer.weights.place import available_bytes

__all__ = ["Plan", "plan_run", "render"]

ASSUMED_PROMPT, ASSUMED_SUM = 512, 128
"""Tokens of the longest prompt where nobody knows: of problems in words; of a sum in a chat."""


def plan_run(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    longest_prompt: int | None = None,
    *,
    available: int | None = None,
    processes: int = 1,
    held_out: int = 0,
    widen: bool = False,
    rollout_options: RolloutOptions | None = None,
    problems: Problems | None = None,
) -> Plan:
    """Plan a run without loading weights; `longest_prompt` is in tokens, `available` in bytes.

    What is None is taken from --max-prompt-length or assumed, and measured. Counts are over all
    `processes`, memory is that of each. `held_out` problems are scored; with `widen` the batch may
    grow for them, as it does in run_grpo; `problems` are those that are trained on, where they are
    here. Raises UsageError and EnvironmentUnfit as loading the model and opening a rollout would,
    and UsageError beyond the model's positions.
    """
    started_at, config = now(), config.filled(options.model)
    prompt, said = _prompt(config, longest_prompt)
    model, batch = outline(options, absent=True), batch_plan(config, prompt, processes)
    inference = Inference(model, chosen(config.lora_rank), options.lora_mode)
    refuse(model, inference, engine, config, rollout_options or RolloutOptions())
    if problems is not None:
        refuse_lengths(model, options, engine, config, problems)
    new_tokens = chosen(config.max_completion_length)
    check_positions(prompt, new_tokens, model.positions, model.name)
    free = _free(model.device) if available is None else available
    setting = Setting(model, inference, engine, config, batch, prompt)
    setting, decided = fitted(setting, free, held_out if widen else 0)
    asked, engine, config = engine.kv_memory, setting.engine, setting.config
    found = _fit(setting, asked, options, free)
    kv, parts = found.kv, found.parts
    return Plan(
        config={"model": asdict(options), "engine": asdict(engine), "grpo": asdict(config)},
        started_at=started_at,
        model_name=model.name,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        batch=batch,
        parts=(*parts, found.cache),
        kv=kv,
        available=None if math.isinf(free) else int(free),
        least=found.least,
        least_at_once=kv.holds(found.kept),
        wanted=needed(parts, replace(found.cache, n_bytes=kv.wanted)),
        granted=found.granted,
        at_once=0 if found.excess else kv.holds(found.granted),
        scored_at_once=min(held_out, engine.max_batch_size),
        hints=found.hints,
        notices=(*model.notices, *said, *decided),
    )


class _Fit(NamedTuple):
    """Whether a setting fits, in bytes: `cache` is shown, `kept` of it counts in `least`."""

    kv: KV
    parts: list[Part]
    cache: Part
    kept: int
    granted: int
    least: int
    excess: bool
    hints: tuple[str, ...]


def _fit(setting: Setting, asked: int | None, options: ModelOptions, free: float) -> _Fit:
    """Hold a setting against what is free; `asked` is the --kv-memory that was given."""
    engine, config = setting.engine, setting.config
    kv, parts, phase = setting.kv(), parts_of(setting), kv_phase(config)
    before = [part for part in parts if part.phase != "training"]
    room = (free - needed(before, Part("KV cache", phase, 0))) * SHARE
    granted = int(min(engine.kv_memory or kv.wanted, kv.wanted, max(room, 0)))
    kept = max(granted, kv.least) if asked is not None and phase == "always" else kv.least
    cache = Part("KV cache", phase, kept)
    least, excess = needed(parts, cache), asked is not None and asked > free
    short = least > free or room < kv.least
    hints = advice(parts, options, config, cache) if short else ()
    if short and kept > kv.least:
        hints = (*hints, *fitting_kv(parts, free, kv.least))
    if not excess and (engine.kv_memory or kv.least) < kv.least:
        hints = (*hints, "raise --kv-memory")
    if excess:
        hints = (*hints, "lower --kv-memory")
    shown = cache if short else replace(cache, n_bytes=granted)
    return _Fit(kv, parts, shown, kept, granted, least, excess, hints)


def _free(device: torch.device) -> float:
    """Return the bytes that each process may have; infinity on a device that is not here."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return math.inf
    return available_bytes(device) // sharing(device.type)


def _prompt(config: GrpoConfig, longest: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the tokens of the longest prompt, and what to say where they are assumed."""
    if longest is not None or config.max_prompt_length is not None:
        return longest or chosen(config.max_prompt_length), ()
    assumed = ASSUMED_SUM if config.dataset.lower() == "arithmetic" else ASSUMED_PROMPT
    return assumed, (f"prompts: up to {assumed} tokens assumed",)
