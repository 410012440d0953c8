"""`train-grpo --dry-run`: batch arithmetic and a memory plan, and whether it fits.

For the command line: `plan_run(...) -> Plan`, `render(plan, as_json, width)`, `plan.exit_code`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.memory import SHARE, available_memory, human
from flexinfer.errors import NotEnoughMemory
from flexinfer.tasks.columns import aligned
from flexinfer.tasks.environment import document, now
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import BatchPlan, batch_plan, chosen
from flexinfer.tasks.grpo.plan.fit import Part, advice, kv_phase, needed
from flexinfer.tasks.grpo.plan.model import Outline, outline
from flexinfer.tasks.grpo.plan.passing import KV, activation_bytes, kv_of, prefill_bytes
from flexinfer.tasks.grpo.plan.standing import (
    Inference,
    adapter_bytes,
    optimizer_bytes,
    weight_bytes,
)

ASSUMED_PROMPT, ASSUMED_SUM = 512, 128
"""Tokens of the longest prompt where nobody knows: of problems in words; of a sum in a chat."""
CONTEXT_BYTES = 600_000_000
"""The CUDA context, library workspaces and captured graphs, nearly."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do and need; bytes throughout.

    `at_once` of `kv.sequences` sequences fit at their longest: the others wait.
    """

    config: dict[str, Any]
    started_at: str
    model_name: str
    device: str
    dtype: str
    batch: BatchPlan
    parts: tuple[Part, ...]
    kv: KV
    available: int
    least: int
    wanted: int
    at_once: int
    hints: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the run can start: with room for one sequence at least."""
        return self.least <= self.available and self.at_once > 0

    @property
    def exit_code(self) -> int:
        """0, or NotEnoughMemory's where it does not fit."""
        return 0 if self.fits else NotEnoughMemory.exit_code

    @property
    def verdict(self) -> str:
        """Whether it fits, in a line."""
        figures = f"{human(self.least)} at least, {human(self.available)} available"
        if not self.fits:
            return f"does not fit: needs {figures}"
        if self.at_once < self.kv.sequences:
            few = f"{self.at_once} of {self.kv.sequences} sequences of {self.kv.longest} tokens"
            return f"fits, with KV for {few} at once: {human(self.available)} available"
        return f"fits: needs {human(self.wanted)}, {human(self.available)} available"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain containers."""
        own = {k: v for k, v in asdict(self).items() if k not in ("config", "started_at")}
        own |= {"dry_run": True, "fits": self.fits, "verdict": self.verdict}
        own["kv"] |= {"wanted": self.kv.wanted, "least": self.kv.least}
        return document("train-grpo", self.config, self.started_at) | own


def plan_run(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    longest_prompt: int | None = None,
    *,
    available: int | None = None,
    processes: int = 1,
) -> Plan:
    """Plan a run without loading weights; `longest_prompt` is in tokens, `available` in bytes.

    What is None is taken from --max-prompt-length or assumed, and measured. Raises UsageError and
    EnvironmentUnfit as loading the model would, and UsageError beyond the model's positions.
    """
    started_at, config = now(), config.filled(options.model)
    prompt, said = _prompt(config, longest_prompt)
    model, batch = outline(options), batch_plan(config, prompt, processes)
    inference = Inference(model, chosen(config.lora_rank), options.lora_mode)
    longest = prompt + chosen(config.max_completion_length)
    kv = kv_of(model, inference.decoder, engine, longest)
    parts = _parts(model, inference, engine, config, batch, prompt)
    free = available_memory(model.device) if available is None else available
    cache = Part("KV cache", kv_phase(config), kv.wanted)
    before = [part for part in parts if part.phase != "training"]
    room = (free - needed(before, replace(cache, n_bytes=0))) * SHARE
    granted = min(engine.kv_memory or kv.wanted, kv.wanted, max(room, 0))
    kept = max(int(granted), kv.least) if cache.phase == "always" else kv.least
    least = needed(parts, replace(cache, n_bytes=kept))
    excess = engine.kv_memory is not None and engine.kv_memory > free
    hints = advice(parts, options, config, cache) if least > free else ()
    return Plan(
        config={"model": asdict(options), "engine": asdict(engine), "grpo": asdict(config)},
        started_at=started_at,
        model_name=model.name,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        batch=batch,
        parts=(*parts, cache),
        kv=kv,
        available=free,
        least=least,
        wanted=needed(parts, cache),
        at_once=0 if excess else kv.holds(granted),
        hints=(*hints, "lower --kv-memory") if excess else hints,
        notices=(*model.notices, *said),
    )


def _prompt(config: GrpoConfig, longest: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the tokens of the longest prompt, and what to say where they are assumed."""
    if longest is not None or config.max_prompt_length is not None:
        return longest or chosen(config.max_prompt_length), ()
    assumed = ASSUMED_SUM if config.dataset.lower() == "arithmetic" else ASSUMED_PROMPT
    return assumed, (f"prompts: up to {assumed} tokens assumed",)


def _parts(
    model: Outline,
    inference: Inference,
    engine: EngineConfig,
    config: GrpoConfig,
    batch: BatchPlan,
    prompt: int,
) -> list[Part]:
    """Return everything but the cache."""
    rank, optim = chosen(config.lora_rank), config.optim
    checkpointing = bool(config.gradient_checkpointing)
    parts = [
        Part("weights", "always", weight_bytes(model)),
        Part(f"adapter, rank {rank}", "always", adapter_bytes(model, rank)),
        Part(f"optimizer, {optim}", "always", optimizer_bytes(model, rank, optim)),
    ]
    if config.rollout == "flex":
        parts.append(Part(f"engine's copy, {inference.mode}", "always", inference.n_bytes))
    if model.device.type == "cuda":
        parts.append(Part("CUDA context, graphs", "always", CONTEXT_BYTES))
    prompts = batch.prompts_per_step * prompt
    return [
        *parts,
        Part("prefill, sampling", "rollout", prefill_bytes(model, engine, prompts)),
        Part("gradients", "training", adapter_bytes(model, rank)),
        Part("activations", "training", activation_bytes(model, batch, checkpointing)),
    ]


def render(plan: Plan, as_json: bool, width: int | None = None) -> str:
    """Return the plan as text, or as its JSON document."""
    if as_json:
        return json.dumps(plan.as_dict(), indent=2, default=str) + "\n"
    lines = [
        f"{plan.model_name}, {plan.dtype} on {plan.device}",
        "",
        *aligned([["batches", "count"], *_counts(plan.batch)], words=1),
        "",
        *aligned([["memory", "while", "size"], *_sizes(plan.parts)], words=2),
        "",
        plan.verdict,
        *(f"hint: {hint}" for hint in plan.hints),
    ]
    return "\n".join(lines) + "\n"


def _counts(batch: BatchPlan) -> list[list[str]]:
    """Return the batch arithmetic as rows."""
    return [[name.replace("_", " "), f"{count:,}"] for name, count in asdict(batch).items()]


def _sizes(parts: Sequence[Part]) -> list[list[str]]:
    """Return the parts as rows."""
    return [[part.name, part.phase, human(part.n_bytes)] for part in parts]
