"""A plan as people and programs read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from flexinfer.core.sizes import human
from flexinfer.tasks.columns import aligned
from flexinfer.tasks.grpo.plan.batch import BatchPlan
from flexinfer.tasks.grpo.plan.fit import Part, Phase, total
from flexinfer.tasks.grpo.plan.outcome import Plan


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
        "needed: the larger of the two sums",
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
    """Return the parts as rows, then what is there at the same time."""
    passing: tuple[Phase, ...] = ("rollout", "training")
    always = total(parts, "always")
    sums = [(f"always + {phase}", human(always + total(parts, phase))) for phase in passing]
    rows = [[part.name, part.phase, human(part.n_bytes)] for part in parts]
    return [*rows, *(["sum", *cells] for cells in sums)]
