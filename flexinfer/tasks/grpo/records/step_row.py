"""A step as one row of cells: what the terminal, a log and the report all show of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flexinfer.tasks.grpo.records.record import StepRecord


class Column(NamedTuple):
    """A figure: its name, its unit (empty where it needs none), the letters it takes, its text."""

    name: str
    unit: str
    width: int
    cell: Callable[[StepRecord], str]


KL = "kl"
COLUMNS = (
    Column("step", "", 5, lambda s: str(s.step)),
    Column("reward", "", 6, lambda s: f"{s.reward:.3f}"),
    Column(KL, "", 7, lambda s: "-" if s.kl is None else f"{s.kl:.1e}"),
    Column("gap mean", "", 8, lambda s: f"{s.gap_mean:.1e}"),
    Column("length", "", 6, lambda s: f"{s.mean_length:.1f}"),
    Column("clipped", "%", 7, lambda s: f"{100 * s.clipped_fraction:.0f}"),
    Column("generate", "s", 8, lambda s: f"{s.generate_s:.2f}"),
    Column("refresh", "s", 7, lambda s: f"{s.refresh_s:.2f}"),
    Column("train", "s", 6, lambda s: f"{s.train_s:.2f}"),
    Column("rollout", "tok/s", 7, lambda s: f"{s.tokens_per_s:,.0f}"),
)


def columns(steps: Sequence[StepRecord]) -> tuple[Column, ...]:
    """Return the figures that steps of a run have; KL is not computed where it weighs nothing."""
    penalised = any(step.kl is not None for step in steps)
    return tuple(column for column in COLUMNS if penalised or column.name != KL)


def rows(steps: Sequence[StepRecord]) -> list[list[str]]:
    """Return the names of the figures, with their units, and the cells of each step."""
    shown = columns(steps)
    heads = [f"{column.name} {column.unit}".rstrip() for column in shown]
    return [heads, *([column.cell(step) for column in shown] for step in steps)]


def line(record: StepRecord, max_steps: int) -> str:
    """Return a step as a line of a log."""
    _, *rest = columns([record])
    told = (f"{c.name} {c.cell(record)} {c.unit}".rstrip() for c in rest)
    return f"step {record.step}/{max_steps}: {', '.join(told)}"
