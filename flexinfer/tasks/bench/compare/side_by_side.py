"""Which rows of a run did the same work, how they are named, and what their probes say."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.tasks.bench.compare.agreement import Agreement, held_against
from flexinfer.tasks.bench.result import BenchResult

WORK = (
    "model_name",
    "lora_adapter",
    "quantization",
    "max_batch_size",
    "n_prompts",
    "n_samples",
    "prompt_length",
    "max_new_tokens",
)
"""What two rows must share to be expected to say the same."""
OWN_WEIGHTS = "not comparable: it makes random weights of its own"
OTHER_ROUNDING = "one adapter is merged, one beside its base: their weights are rounded otherwise"


def work_of(row: BenchResult) -> tuple[object, ...]:
    """Return the values of WORK."""
    return tuple(vars(row)[name] for name in WORK)


def form_of(row: BenchResult) -> str:
    """Name the weights of a row, "" for plain ones."""
    parts = (row.quantization, row.lora_adapter and f"LoRA {row.lora_mode}")
    return " ".join(part for part in parts if part)


def labels(rows: Sequence[BenchResult]) -> list[str]:
    """Name rows: back end, batch, and the weights and lengths that differ among them."""
    vary = {
        name: len({vars(row)[name] for row in rows}) > 1
        for name in ("prompt_length", "max_new_tokens")
    }
    forms = len({form_of(row) for row in rows}) > 1
    return [
        " ".join(
            part
            for part, shown in (
                (row.backend, True),
                (form_of(row) or "plain", forms),
                (f"prompts {row.prompt_length}", vary["prompt_length"]),
                (f"new {row.max_new_tokens}", vary["max_new_tokens"]),
                (f"batch {row.max_batch_size}", True),
            )
            if shown
        )
        for row in rows
    ]


def agreements(rows: Sequence[BenchResult], load_format: str) -> tuple[Agreement, ...]:
    """Hold every row's probe against an earlier row's of the same work.

    That is the first one which brings its adapter in alike, else the first of all.
    """
    found: list[Agreement] = []
    earlier: dict[tuple[object, ...], list[tuple[str, BenchResult]]] = {}
    for label, row in zip(labels(rows), rows, strict=True):
        if not row.probe:
            continue
        others = earlier.setdefault(work_of(row), [])
        alike = (one for one in others if one[1].lora_mode == row.lora_mode)
        chosen = next(alike, others[0] if others else None)
        others.append((label, row))
        if chosen is None:
            continue
        against, other = chosen
        if load_format == "dummy" and "vllm" in (row.backend, other.backend):
            found.append(Agreement(label=label, against=against, note=OWN_WEIGHTS))
            continue
        note = "" if row.lora_mode == other.lora_mode else OTHER_ROUNDING
        found.append(held_against(label, against, row.probe, other.probe, note))
    return tuple(found)
