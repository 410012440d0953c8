"""Speed over batch sizes, against what the memory's bandwidth would allow at each of them."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.tasks.bench.compare.noise import round_rates
from flexinfer.tasks.bench.compare.side_by_side import series_of
from flexinfer.tasks.bench.result import BenchResult, Roofline
from flexinfer.tasks.charts.chart import Growth, Line

MEASURED = (
    "sequences decoded at once; the whole call, prefill included, from slowest to fastest round"
)
DASHED = "; dashed: reading weights and KV at the copy bandwidth"
POINTS = 32
"""Of a roofline between two doublings of the batch all that the eye can tell is smooth."""


def at_once(row: BenchResult) -> int:
    """Return the sequences that a row decodes at once: its prompts may not fill the batch."""
    return min(row.max_batch_size, row.n_prompts * row.n_samples)


def groups(rows: Sequence[BenchResult]) -> list[int]:
    """Return the number of each row's curve, which is that of its colour."""
    names = series_of(rows)
    known = list(dict.fromkeys(names))
    return [known.index(name) for name in names]


def throughput(rows: Sequence[BenchResult]) -> list[Growth]:
    """Return the chart; none where one batch was measured and no floor is known."""
    by_name: dict[str, list[BenchResult]] = {}
    for name, row in zip(series_of(rows), rows, strict=True):
        by_name.setdefault(name, []).append(row)
    sizes = sorted({at_once(row) for row in rows})
    if len(sizes) == 1 and all(row.roofline is None for row in rows):
        return []
    own = list(by_name.items())
    lines = [line for group, (name, of) in enumerate(own) for line in _measured(name, of, group)]
    if not lines:
        return []
    floors = _rooflines(own)
    return [
        Growth(
            title="Throughput over batch size",
            unit="tokens / s",
            x_label=MEASURED + (DASHED if floors else ""),
            ticks=sizes,
            lines=[*floors, *lines],
            wide=True,
        )
    ]


def _measured(name: str, rows: Sequence[BenchResult], group: int) -> list[Line]:
    """Return the curve of the rows that have figures, none where there are none."""
    known = [(row, row.decode_tps_median) for row in rows if row.decode_tps_median is not None]
    if not known:
        return []
    known.sort(key=lambda pair: at_once(pair[0]))
    rates = [round_rates(vars(row)) for row, _ in known]
    return [
        Line(
            label=name,
            x=[at_once(row) for row, _ in known],
            values=[speed for _, speed in known],
            group=group,
            low=[min(own) for own in rates],
            high=[max(own) for own in rates],
        )
    ]


def _rooflines(series: Sequence[tuple[str, Sequence[BenchResult]]]) -> list[Line]:
    """Return a curve for each floor; back ends that read the same bytes share one, in grey."""
    floors: dict[tuple[object, ...], list[tuple[int, str, Roofline]]] = {}
    for group, (name, rows) in enumerate(series):
        known = [row for row in rows if row.roofline is not None]
        if known:
            row = max(known, key=at_once)
            assert row.roofline is not None
            lengths = row.prompt_length, row.max_new_tokens
            key = row.model_name, row.quantization, row.lora_mode, *lengths
            floors.setdefault(key, []).append((group, name, row.roofline))
    sizes = [at_once(row) for _, rows in series for row in rows]
    low, high = min(sizes), max(sizes)
    low = max(1, low // 2) if low == high else low
    x = [low * (high / low) ** (at / (POINTS - 1)) for at in range(POINTS)]
    lines = []
    for own in floors.values():
        group, name, floor = max(own, key=lambda one: one[2].copy_gb_per_s)
        alone = len(floors) == 1
        label = f"memory roofline{'' if alone else f' of {name}'} ({floor.copy_gb_per_s:,.0f} GB/s)"
        values = [floor.tps(batch) for batch in x]
        lines.append(
            Line(label=label, x=x, values=values, group=None if alone else group, dashed=True)
        )
    return lines
