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


def series_of(rows: Sequence[BenchResult]) -> list[str]:
    """Name rows by all but their batch: back end, and the weights and lengths that differ."""
    forms = len({form_of(row) for row in rows}) > 1
    lengths = len({row.prompt_length for row in rows}) > 1
    news = len({row.max_new_tokens for row in rows}) > 1
    return [
        row.backend
        + (f" {form_of(row) or 'plain'}" if forms else "")
        + (f" prompts {row.prompt_length}" if lengths else "")
        + (f" new {row.max_new_tokens}" if news else "")
        for row in rows
    ]


def labels(rows: Sequence[BenchResult]) -> list[str]:
    """Name rows, the batch included."""
    named = zip(series_of(rows), rows, strict=True)
    return [f"{series} batch {row.max_batch_size}" for series, row in named]


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
