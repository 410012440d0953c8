"""From timed operations to the rows and figures of a step: arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flexinfer.tasks.bench.profile.record import OTHER
from flexinfer.tasks.bench.profile.result import OpRow
from flexinfer.tasks.bench.profile.step import Timed


class Floor(NamedTuple):
    """What a step must read at least, and the bytes a second that the device copies."""

    step_bytes: float
    bandwidth: float


def op_rows(timed: Sequence[Timed], floor: Floor | None) -> tuple[OpRow, ...]:
    """Group the operations of a step by name and shape, in order; what lies between comes last."""
    groups: dict[tuple[str, str], list[Timed]] = {}
    for one in timed:
        groups.setdefault((one.op.name, one.op.shape), []).append(one)
    busy = sum(one.us for one in timed)
    between = groups.pop((OTHER.name, OTHER.shape), None)
    ordered = [*groups.values(), *([between] if between else [])]
    return tuple(_row(group, busy, floor) for group in ordered)


def _row(group: Sequence[Timed], busy: float, floor: Floor | None) -> OpRow:
    """Return the row of equal operations; bytes and what follows from them where they are known."""
    op, us = group[0].op, sum(one.us for one in group)
    counted = [one.kernels for one in group if one.kernels is not None]
    figures: dict[str, Any] = {}
    if moved := sum(one.op.moves for one in group):
        figures = {"bytes_step": moved, "gb_per_s": moved / us / 1e3 if us else None}
        if floor is not None:
            least = 1e6 * moved / floor.bandwidth
            figures |= {"floor_us": least, "over_us": us - least}
    return OpRow(
        name=op.name,
        shape=op.shape,
        calls=len(group),
        kernels=sum(counted) if counted else None,
        us_each=us / len(group),
        us_step=us,
        share_pct=100.0 * us / busy if busy else 0.0,
        **figures,
    )


def kernels_per_layer(timed: Sequence[Timed], n_layers: int) -> float | None:
    """Return the kernels of operations that belong to layers, a layer; None where none does."""
    layered = [one.kernels or 0 for one in timed if one.op.layered]
    return sum(layered) / n_layers if any(layered) else None


def over_floor(step_us: float, rows: Sequence[OpRow], floor: Floor | None) -> dict[str, Any]:
    """Say how far a step is above its floor, and where the difference goes.

    Operations whose bytes are not known count as over with all their time.
    """
    if floor is None:
        return {}
    least = 1e6 * floor.step_bytes / floor.bandwidth
    of_bytes = sum(row.floor_us or 0.0 for row in rows)
    figures = {
        "floor_us": least,
        "floor_pct": 100.0 * least / step_us,
        "over_floor_us": step_us - least,
    }
    if not of_bytes:
        return figures
    over = sum(row.us_step for row in rows) - of_bytes
    return figures | {"ops_over_us": over, "beyond_floor_us": of_bytes - least}
