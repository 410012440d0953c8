"""Which kernels take most of a step, and what each of them takes a layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

from flexinfer.tasks.bench.profile.record import OTHER, Op
from flexinfer.tasks.bench.profile.result import KernelRow
from flexinfer.tasks.bench.profile.timeline import Span, lay, short_name
from flexinfer.tasks.bench.profile.traced import Traced

TOP = 20


class Launched(NamedTuple):
    """One kernel of a step: its name, the operation it belongs to, what it adds to busy time."""

    name: str
    op: Op
    us: float


def device_launches(found: Traced) -> list[Launched]:
    """Return the kernels of a played step; their operation is OTHER where the two do not match.

    Where blocks are compiled as a whole an operation is a kernel, of the kernel's own name.
    """
    if found.played is None:
        return []
    names, times = found.played.names, found.played.own_us
    known = sum(one.kernels or 0 for one in found.timed) == len(names)
    ops = (
        (one.op if one.op.shape or one.op.layered else one.op._replace(name=""))
        for one in found.timed
        for _ in range(one.kernels or 0)
    )
    whose = list(ops) if known else [OTHER] * len(names)
    each = zip(names, whose, times, strict=True)
    return [Launched(short_name(name), op, us) for name, op, us in each]


def host_launches(steps: Sequence[Sequence[tuple[Op, Sequence[Span]]]]) -> list[Launched]:
    """Return torch's outermost operators of every operation, their times the medians over steps.

    Those within one are part of it. Where steps differ, the last one speaks.
    """
    found = [
        [
            Launched(span.name, op, own / 1e3)
            for op, spans in step
            for span, own in zip(spans, lay(spans).own, strict=True)
            if own
        ]
        for step in steps
    ]
    last = found[-1]
    alike = [one for one in found if [x.name for x in one] == [x.name for x in last]]
    return [same[-1]._replace(us=median(x.us for x in same)) for same in zip(*alike, strict=True)]


def top_kernels(
    launched: Iterable[Launched], layers: int, most: int = TOP
) -> tuple[KernelRow, ...]:
    """Return the rows of the kernels that take most of a step, the longest first."""
    groups: dict[tuple[str, str], list[Launched]] = {}
    for one in launched:
        groups.setdefault((one.name, one.op.name), []).append(one)
    busy = sum(one.us for group in groups.values() for one in group)
    ranked = sorted(groups.values(), key=lambda group: -sum(one.us for one in group))
    return tuple(_row(group, busy, layers) for group in islice(ranked, most))


def _row(group: Sequence[Launched], busy: float, layers: int) -> KernelRow:
    """Return the row of a kernel's calls within operations of one name."""
    us, layered = sum(one.us for one in group), sum(one.op.layered for one in group)
    in_layers = sum(one.us for one in group if one.op.layered)
    return KernelRow(
        name=group[0].name,
        operation=group[0].op.name,
        calls_step=len(group),
        calls_layer=layered / layers if layered else None,
        us_each=us / len(group),
        us_step=us,
        us_layer=in_layers / layers if layered else None,
        share_pct=100.0 * us / busy if busy else 0.0,
    )
