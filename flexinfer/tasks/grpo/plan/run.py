"""`train-grpo --dry-run`: batch arithmetic and a memory plan, and whether it fits.

For the command line: `plan_run(...) -> Plan`, `render(plan, as_json, width)`, `plan.exit_code`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.core.sizes import human
from flexinfer.engine.memory import SHARE
from flexinfer.errors import NotEnoughMemory
from flexinfer.tasks.columns import aligned
from flexinfer.tasks.environment import document, now
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import BatchPlan, batch_plan, chosen
from flexinfer.tasks.grpo.plan.beside import fitted
from flexinfer.tasks.grpo.plan.fit import Part, advice, kv_phase, needed
from flexinfer.tasks.grpo.plan.model import outline
from flexinfer.tasks.grpo.plan.parts import Setting, parts_of
from flexinfer.tasks.grpo.plan.passing import KV
from flexinfer.tasks.grpo.plan.standing import Inference
from flexinfer.tasks.grpo.positions import check_positions
from flexinfer.tasks.grpo.processes import sharing
from flexinfer.weights.place import available_bytes

ASSUMED_PROMPT, ASSUMED_SUM = 512, 128
"""Tokens of the longest prompt where nobody knows: of problems in words; of a sum in a chat."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do and need; bytes throughout.

    The cache gets `granted`, in which `at_once` of `kv.sequences` sequences fit at their longest:
    the others wait. `least`, with KV for `least_at_once` of them, must be there for a run to start;
    `wanted` holds all. `scored_at_once` held-out problems are answered at a time, 0 where none are.
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
    least_at_once: int
    wanted: int
    granted: int
    at_once: int
    scored_at_once: int
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
        """Whether it fits, in a line: what is counted, and how much KV is in it."""
        there = f"{human(self.available)} available on {self.device}"
        asked = self.config["engine"]["kv_memory"]
        if asked is not None and asked > self.available:
            return f"does not fit: --kv-memory asks for {human(asked)}, {there}"
        if self.least > self.available:
            even = "even " if self.least_at_once < self.kv.sequences else ""
            needs = f"{human(self.least)}, {even}{self._with_kv(self.least_at_once)}"
            return f"does not fit: needs {needs}; {there}"
        if not self.at_once:
            one = f"one sequence of {self.kv.longest} tokens needs {human(self.kv.least)}"
            return f"does not fit: {human(self.granted)} for the KV cache, {one}; {there}"
        *parts, cache = self.parts
        needs = human(needed(parts, replace(cache, n_bytes=self.granted)))
        waits = ", the others wait" if self.at_once < self.kv.sequences else ""
        return f"fits: needs {needs}, {self._with_kv(self.at_once)}{waits}; {there}"

    def _with_kv(self, sequences: int) -> str:
        """Say for how many sequences at a time a sum has KV in it."""
        few = "all" if sequences == self.kv.sequences else f"{sequences} of"
        return f"with KV for {few} {self.kv.sequences} sequences of {self.kv.longest} tokens"

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
    held_out: int = 0,
    widen: bool = False,
) -> Plan:
    """Plan a run without loading weights; `longest_prompt` is in tokens, `available` in bytes.

    What is None is taken from --max-prompt-length or assumed, and measured. Counts are over all
    `processes`, memory is that of each. `held_out` problems are scored; with `widen` the batch may
    grow for them, as it does in run_grpo. Raises UsageError and EnvironmentUnfit as loading the
    model would, and UsageError beyond the model's positions.
    """
    started_at, config = now(), config.filled(options.model)
    prompt, said = _prompt(config, longest_prompt)
    model, batch = outline(options), batch_plan(config, prompt, processes)
    inference = Inference(model, chosen(config.lora_rank), options.lora_mode)
    new_tokens = chosen(config.max_completion_length)
    check_positions(prompt, new_tokens, model.positions, model.name)
    free = available_bytes(model.device) // sharing(model.device.type)
    free = free if available is None else available
    setting = Setting(model, inference, engine, config, batch, prompt)
    setting, recomputed = fitted(setting, free, held_out if widen else 0)
    engine, config = setting.engine, setting.config
    kv, parts = setting.kv(), parts_of(setting)
    cache = Part("KV cache", kv_phase(config), kv.wanted)
    before = [part for part in parts if part.phase != "training"]
    room = (free - needed(before, replace(cache, n_bytes=0))) * SHARE
    granted = min(engine.kv_memory or kv.wanted, kv.wanted, max(room, 0))
    kept = max(int(granted), kv.least) if cache.phase == "always" else kv.least
    least = needed(parts, replace(cache, n_bytes=kept))
    excess = engine.kv_memory is not None and engine.kv_memory > free
    short = least > free or room < kv.least
    hints = advice(parts, options, config, cache) if short else ()
    if not excess and (engine.kv_memory or kv.least) < kv.least:
        hints = (*hints, "raise --kv-memory")
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
        least_at_once=kv.holds(kept),
        wanted=needed(parts, cache),
        granted=int(granted),
        at_once=0 if excess else kv.holds(granted),
        scored_at_once=0 if config.rollout == "vllm" else min(held_out, engine.max_batch_size),
        hints=(*hints, "lower --kv-memory") if excess else hints,
        notices=(*model.notices, *said, *recomputed),
    )


def _prompt(config: GrpoConfig, longest: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the tokens of the longest prompt, and what to say where they are assumed."""
    if longest is not None or config.max_prompt_length is not None:
        return longest or chosen(config.max_prompt_length), ()
    assumed = ASSUMED_SUM if config.dataset.lower() == "arithmetic" else ASSUMED_PROMPT
    return assumed, (f"prompts: up to {assumed} tokens assumed",)


def render(plan: Plan, as_json: bool, width: int | None = None) -> str:
    """Return the plan as text, or as its JSON document."""
    if as_json:
        return json.dumps(plan.as_dict(), indent=2, default=str) + "\n"
    lines = [
        f"{plan.model_name}, {plan.dtype} on {plan.device}",
        *_shared(plan.batch),
        "",
        *aligned([["batches", "count"], *_counts(plan)], words=1),
        "",
        *aligned([["memory", "while", "size"], *_sizes(plan.parts)], words=2),
        "counted: what is always there, and the larger of rollout and training",
        "",
        plan.verdict,
        *(f"hint: {hint}" for hint in plan.hints),
    ]
    return "\n".join(lines) + "\n"


def _shared(batch: BatchPlan) -> list[str]:
    """Say how several processes share a step."""
    if batch.processes == 1:
        return []
    each = batch.forward_passes * batch.completions_per_pass
    return [
        f"{batch.processes} processes: a step has {batch.completions_per_step} completions, "
        f"{each} in each process; memory is that of one process"
    ]


def _counts(plan: Plan) -> list[list[str]]:
    """Return the batch arithmetic as rows."""
    counts = [[name.replace("_", " "), f"{count:,}"] for name, count in asdict(plan.batch).items()]
    scored = [["held-out problems at once", str(plan.scored_at_once)]]
    return counts + (scored if plan.scored_at_once else [])


def _sizes(parts: Sequence[Part]) -> list[list[str]]:
    """Return the parts as rows."""
    return [[part.name, part.phase, human(part.n_bytes)] for part in parts]
