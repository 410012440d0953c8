"""Finds the tiles of a model's shapes on a device by trials, cuBLAS among them.

For every shape and row count families of tiles are tried (candidates.py): the geometries first,
each at the split that just fills the device, then other splits of the best two. cuBLAS loses only
to a tile that is faster by more than the noise, in a second pair of trials too.

Most of the time goes into compiling, so few geometries of products with 4-bit weights are tried,
which all shapes share.

tiles.json is made of what this finds. On the device, with an empty tiles.store, run
`flexinfer bench --tune --load-format dummy --model M` for each of qwen3-4b, llama-3.2-3b-instruct
and gemma-4-E2B-it: their shapes gather in one file, whose path is said. Then
`python -m flexinfer.kernels.fast.tiles.store FILE > new.json` prints the shipped table with them in
it, to replace tiles.json; a device that is new there needs its compute capability in
tests/support/triton_cases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any, NamedTuple

from flexinfer.config import Report, quiet
from flexinfer.kernels.fast.tiles.format import merged
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.fast.tuning.race import Race, Timer

PRODUCT_ROWS = (1, 16, 32, 64, 128, 256)
SIDE_ROWS = (1, 16, 32, 64)
"""Rows of products that only an adapter's side path looks up."""
NF4_ROWS = (8, 16, 32, 64, 128)
"""Rows of products with 4-bit weights: beyond the last they are dequantised, for cuBLAS."""
DECODE_ROWS = (1, 32, 64, 256)


class Shapes(NamedTuple):
    """What a model asks the table for; each without repeats.

    `products` and `gated` are (outputs, inputs), a gated product's outputs being its results;
    `sides` are gate and up as one product, which they are beside an adapter's ranks; `nf4` are
    products with 4-bit weights, with and without adapters, `nf4_sides` those of gate and up;
    `decode` is (query heads a kv head, head dim, kv heads); `prefill` is (head dim, query heads,
    kv heads, window or 0).
    """

    products: tuple[tuple[int, int], ...] = ()
    gated: tuple[tuple[int, int], ...] = ()
    decode: tuple[tuple[int, int, int], ...] = ()
    prefill: tuple[tuple[int, int, int, int], ...] = ()
    sides: tuple[tuple[int, int], ...] = ()
    nf4: tuple[tuple[int, int], ...] = ()
    nf4_sides: tuple[tuple[int, int], ...] = ()


class Processor(NamedTuple):
    """What of a device bears on which tiles are tried; `tma` 1: sm_90 and newer."""

    multiprocessors: int
    tma: int


class Found(NamedTuple):
    """What one race gives the table: entries by kind, the trials run and those that failed."""

    entries: dict[str, list[int] | None]
    trials: int
    failed: int


class Tuned(NamedTuple):
    """Entries of a device as tiles.json has them, and how many trials it took."""

    entries: dict[str, dict[str, dict[str, Any]]]
    trials: int
    failed: int


def tune(shapes: Shapes, processor: Processor, time: Timer, report: Report = quiet) -> Tuned:
    """Run the trials of every shape and return the entries of the table."""
    races = list(races_of(shapes, time))
    tuned = Tuned({}, 0, 0)
    for done, race in enumerate(races):
        name = "x".join(map(str, race.shape))
        report(f"tuning {race.kind} {name}, {race.rows} rows", done, len(races))
        found = run(race, processor)
        entries = {
            kind: {name_of(race): {str(race.rows): tile}} for kind, tile in found.entries.items()
        }
        tuned = Tuned(
            merged(tuned.entries, entries), tuned.trials + found.trials, tuned.failed + found.failed
        )
    report("tuning", len(races), len(races))
    return tuned


def races_of(shapes: Shapes, time: Timer) -> Iterator[Race]:
    """Yield every shape at every row count."""
    for kind, measured in shapes._asdict().items():
        rows = ROWS.get(kind, PRODUCT_ROWS)
        yield from (Race(time, kind, shape, count) for shape in measured for count in rows)


def name_of(race: Race) -> str:
    """Return the table's name of a shape."""
    if race.kind == "decode":
        group, head_dim, kv_heads = race.shape
        return f"{group}x{head_dim}x{min(kv_heads, 8)}"
    return str(race.shape[0]) if race.kind == "prefill" else "x".join(map(str, race.shape))


def run(race: Race, processor: Processor) -> Found:
    """Run a race; attention that runs no tile gets no entry and keeps its default."""
    winners = RUNNERS[race.kind](race, processor)
    entries = {kind: None if tile is None else list(tile) for kind, tile in winners.items()}
    failed = sum(time == inf for time in race.times.values())
    return Found(entries, len(race.times), failed)


def _product(race: Race, processor: Processor) -> dict[str, Any]:
    """Return the winner among all tiles, and among those that leave no partial sums."""
    N, K = race.shape
    families = candidates.products(N, K, race.rows, *processor)
    alone = race.best(candidates.whole(families))
    split = race.best(families)
    return {"matmul": race.against_cublas(split, alone), "whole": race.against_cublas(alone)}


def _gated(race: Race, processor: Processor) -> dict[str, Any]:
    """Return the winner of a gated product."""
    N, K = race.shape
    families = candidates.gated(N, K, race.rows, processor.tma)
    return {"gated": race.against_cublas(race.best(families))}


def _side(race: Race, processor: Processor) -> dict[str, Any]:
    """Return the winner of a product so wide that it is not split."""
    N, K = race.shape
    families = candidates.products(N, K, race.rows, *processor)
    best = race.against_cublas(race.best(candidates.whole(families)))
    return {"matmul": best, "whole": best}


def _nf4(race: Race, processor: Processor) -> dict[str, Any]:
    """Return the winners of a product with 4-bit weights; cuBLAS takes them dequantised."""
    N, K = race.shape
    families = candidates.nf4(N, K, race.rows, processor.multiprocessors)
    alone = race.best(candidates.whole(families))
    split = race.best(families)
    best = race.against_cublas(split, alone)
    return {"nf4": best, "nf4-whole": race.against_cublas(alone)}


def _decode(race: Race, processor: Processor) -> dict[str, Any]:
    """Return the winner of decode attention."""
    _, head_dim, kv_heads = race.shape
    families = candidates.decode(race.rows, head_dim, kv_heads, processor.multiprocessors)
    best = race.best(families)
    return {} if best is None else {"decode": best}


def _prefill(race: Race, processor: Processor) -> dict[str, Any]:
    """Return the winner of prefill attention."""
    best = race.best(candidates.prefill(race.shape[0]))
    return {} if best is None else {"prefill": best}


RUNNERS: dict[str, Callable[[Race, Processor], dict[str, Any]]] = {
    "products": _product, "gated": _gated, "decode": _decode, "prefill": _prefill,
    "sides": _side, "nf4": _nf4, "nf4_sides": _nf4,
}  # fmt: skip
ROWS = {
    "decode": DECODE_ROWS, "prefill": (0,), "sides": SIDE_ROWS, "nf4": NF4_ROWS,
    "nf4_sides": NF4_ROWS,
}  # fmt: skip
"""Row counts by kind, others PRODUCT_ROWS."""
