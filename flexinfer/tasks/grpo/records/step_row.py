"""A step as one row of cells: what the terminal, a log and the report all show of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flexinfer.tasks.grpo.records.record import StepRecord


class Column(NamedTuple):
    """A figure: its name, its unit (empty where it needs none), the letters it takes, its text."""

    name: str
    unit: str
    width: int
    cell: Callable[[StepRecord], str]


COLUMNS = (
    Column("step", "", 5, lambda s: str(s.step)),
    Column("reward", "", 6, lambda s: f"{s.reward:.3f}"),
    Column("kl", "", 7, lambda s: "-" if s.kl is None else f"{s.kl:.1e}"),
    Column("gap", "", 7, lambda s: f"{s.gap_mean:.1e}"),
    Column("length", "", 6, lambda s: f"{s.mean_length:.1f}"),
    Column("clipped", "%", 7, lambda s: f"{100 * s.clipped_fraction:.0f}"),
    Column("generate", "s", 8, lambda s: f"{s.generate_s:.2f}"),
    Column("refresh", "s", 7, lambda s: f"{s.refresh_s:.2f}"),
    Column("train", "s", 6, lambda s: f"{s.train_s:.2f}"),
    Column("tok/s", "", 7, lambda s: f"{s.tokens_per_s:,.0f}"),
)


def cells(record: StepRecord) -> list[str]:
    """Return the cells of a step, in the order of COLUMNS."""
    return [column.cell(record) for column in COLUMNS]


def heads() -> list[str]:
    """Return the names of the cells, with their units."""
    return [f"{column.name} {column.unit}".rstrip() for column in COLUMNS]


def line(record: StepRecord, max_steps: int) -> str:
    """Return a step as a line of a log."""
    _, *rest = COLUMNS
    told = (f"{c.name} {c.cell(record)} {c.unit}".rstrip() for c in rest[:-1])
    speed = f"{rest[-1].cell(record)} {rest[-1].name}"
    return f"step {record.step}/{max_steps}: {', '.join(told)}, {speed}"
