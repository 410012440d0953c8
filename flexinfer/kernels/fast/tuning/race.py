"""A race: the tiles of one shape at one row count against each other and against cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from flexinfer.kernels.fast.tuning.candidates import Family

MARGIN = 0.985
"""A tile is taken where its time is below this part of cuBLAS's: two runs differ by less."""
CLIMBED = 2
"""Of how many geometries other splits are tried."""


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
