"""Finds the tiles of a model's shapes on a device by trials, cuBLAS among them.

For every shape and row count families of tiles are tried (candidates.py): the geometries first,
each at the split that just fills the device, then other splits of the best two. cuBLAS loses only
to a tile that is faster by more than the noise, in a second pair of trials too.

tiles.json is made of what this finds. On the device, with an empty tile_store, run
`flexinfer bench --tune --load-format dummy --model M` for each of qwen3-4b, llama-3.2-3b-instruct
and gemma-4-E2B-it: their shapes gather in one file, whose path is said. Then
`python -m flexinfer.kernels.fast.tile_store FILE > new.json` prints the shipped table with them in
it, to replace tiles.json; a device that is new there needs its compute capability in
tests/support/triton_cases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from flexinfer.config import Report, quiet
from flexinfer.kernels.fast import candidates
from flexinfer.kernels.fast.candidates import Family
from flexinfer.kernels.fast.tile_format import merged

PRODUCT_ROWS = (1, 16, 32, 64, 128, 256)
DECODE_ROWS = (1, 32, 64, 256)
MARGIN = 0.985
"""A tile is taken where its time is below this part of cuBLAS's: two runs differ by less."""
CLIMBED = 2
"""Of how many geometries other splits are tried."""


class Shapes(NamedTuple):
    """What a model asks the table for; each without repeats.

    `products` and `gated` are (outputs, inputs), a gated product's outputs being its results;
    `decode` is (query heads a kv head, head dim, kv heads); `prefill` is (head dim, query heads,
    kv heads, window or 0).
    """

    products: tuple[tuple[int, int], ...] = ()
    gated: tuple[tuple[int, int], ...] = ()
    decode: tuple[tuple[int, int, int], ...] = ()
    prefill: tuple[tuple[int, int, int, int], ...] = ()


class Processor(NamedTuple):
    """What of a device bears on which tiles are tried; `tma` 1: sm_90 and newer."""

    multiprocessors: int
    tma: int


class Trial(NamedTuple):
    """One thing to time: `kind` is a field of Shapes, `tile` None is cuBLAS."""

    kind: str
    shape: tuple[int, ...]
    rows: int
    tile: Any


Timer = Callable[[Trial], float | None]
"""Returns the microseconds of one launch; None where the device cannot run it, or runs it wrong."""


@dataclass
class Race:
    """The trials of one shape at one row count; each is timed once, unless `again` asks."""

    time: Timer
    kind: str
    shape: tuple[int, ...]
    rows: int
    times: dict[Any, float] = field(default_factory=dict)

    def score(self, tile: Any) -> float:
        """Return the microseconds of a tile (None: cuBLAS), infinite where it cannot run."""
        if tile not in self.times:
            self.times[tile] = self._run(tile)
        return self.times[tile]

    def again(self, tile: Any) -> float:
        """Return the better of two trials."""
        self.times[tile] = min(self.score(tile), self._run(tile))
        return self.times[tile]

    def _run(self, tile: Any) -> float:
        """Time a tile."""
        found = self.time(Trial(self.kind, self.shape, self.rows, tile))
        return inf if found is None else found

    def best(self, families: Sequence[Family]) -> Any:
        """Return the fastest tile found, None where none runs."""
        ranked = sorted(families, key=lambda one: self.score(one.tiles[one.start]))
        tops = [self._climb(family) for family in ranked[:CLIMBED]]
        return self._running(tops)

    def _climb(self, family: Family) -> Any:
        """Return a tile of the family that its neighbours do not beat."""
        at = family.start
        for step in (1, -1):
            while 0 <= at + step < len(family.tiles) and self._faster(family, at + step, at):
                at += step
        return family.tiles[at]

    def _faster(self, family: Family, new: int, old: int) -> bool:
        """Return whether tile `new` of a family beats tile `old`."""
        return self.score(family.tiles[new]) < self.score(family.tiles[old])

    def _running(self, tiles: Sequence[Any]) -> Any:
        """Return the fastest of some tiles, None where none runs."""
        best = min(tiles, key=self.score, default=None)
        return None if best is None or self.score(best) == inf else best

    def against_cublas(self, *tiles: Any) -> Any:
        """Return the fastest of some tiles, None where none beats cuBLAS twice."""
        best = self._running([tile for tile in tiles if tile is not None])
        if best is None or self.score(best) >= MARGIN * self.score(None):
            return None
        return best if self.again(best) < MARGIN * self.again(None) else None


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
        rows = {"decode": DECODE_ROWS, "prefill": (0,)}.get(kind, PRODUCT_ROWS)
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
}  # fmt: skip
