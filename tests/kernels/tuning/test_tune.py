"""The search finds what a scripted timer makes fast, skips what fails, and leaves the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tiles.format import well_formed
from flexinfer.kernels.fast.tuning import candidates
from flexinfer.kernels.fast.tuning.candidates import Family
from flexinfer.kernels.fast.tuning.race import Race, Trial
from flexinfer.kernels.fast.tuning.tune import (
    DECODE_ROWS,
    NF4_ROWS,
    PRODUCT_ROWS,
    SIDE_ROWS,
    Processor,
    Shapes,
    tune,
)

H200 = Processor(132, 1)
SHAPE = (2560, 4096)
PRODUCT = Shapes(products=(SHAPE,))
EVERYTHING = Shapes(
    products=(SHAPE, (151_936, 2560)),
    gated=((9728, 2560),),
    decode=((4, 128, 8), (3, 128, 32)),
    prefill=((128, 32, 8, 0),),
    sides=((19_456, 2560),),
    nf4=(SHAPE,),
    nf4_sides=((19_456, 2560),),
)


class FakeTimer:
    """Takes microseconds from a script, and keeps the trials."""

    def __init__(self, script: Callable[[Trial], float | None]) -> None:
        self.script = script
        self.trials: list[Trial] = []

    def __call__(self, trial: Trial) -> float | None:
        self.trials.append(trial)
        return self.script(trial)


def around(best: Tile, cublas: float = 100.0) -> FakeTimer:
    """Make `best` take 10 us, every other tile the more the further its split is from it."""

    def script(trial: Trial) -> float:
        if trial.tile is None:
            return cublas
        other = trial.tile._replace(split=best.split) != best
        return 10.0 + 20.0 * other + 3.0 * abs(trial.tile.split - best.split)

    return FakeTimer(script)


@pytest.mark.parametrize("split", [1, 2, 4, 8])
def test_the_fastest_is_found_at_every_split(split: int) -> None:
    best = Tile(64, 64, 128, split, 4, 4, 1)
    entries = tune(PRODUCT, H200, around(best)).entries
    assert entries["matmul"]["2560x4096"]["64"] == list(best)
    assert entries["whole"]["2560x4096"]["64"] == list(best._replace(split=1))


def test_not_every_tile_is_timed() -> None:
    timer = around(Tile(64, 64, 128, 4, 4, 4, 1))
    tune(PRODUCT, H200, timer)
    timed = {trial for trial in timer.trials if trial.rows == 64}
    families = candidates.products(*SHAPE, 64, *H200)
    assert len(timed) < sum(len(family.tiles) for family in families) / 1.3


def test_cublas_keeps_what_it_wins_or_nearly_wins() -> None:
    best = Tile(64, 64, 128, 2, 4, 4, 1)
    for cublas, kept in ((9.0, True), (10.1, True), (10.3, False)):
        entries = tune(PRODUCT, H200, around(best, cublas)).entries
        assert (entries["matmul"]["2560x4096"]["64"] is None) == kept
        assert entries["whole"]["2560x4096"]["64"] is None


def test_a_lucky_trial_does_not_win() -> None:
    """Each contestant runs twice; the better time counts."""
    first: set[Trial] = set()

    def script(trial: Trial) -> float:
        again = trial in first
        first.add(trial)
        return 50.0 if trial.tile else 20.0 if again else 100.0

    assert set(tune(PRODUCT, H200, FakeTimer(script)).entries["matmul"]["2560x4096"].values()) == {
        None
    }


def test_tiles_that_fail_are_skipped_and_counted() -> None:
    best = Tile(64, 64, 64, 3, 4, 6, 1)
    scripted = around(best).script
    timer = FakeTimer(
        lambda trial: None if trial.tile and trial.tile.BN >= 128 else scripted(trial)
    )
    tuned = tune(PRODUCT, H200, timer)
    found = [tile for tile in tuned.entries["matmul"]["2560x4096"].values() if tile]
    assert found
    assert all(tile[1] < 128 for tile in found)
    failed = {trial for trial in timer.trials if trial.tile and trial.tile.BN >= 128}
    assert tuned.failed == len(failed) > 0
    assert tuned.trials == len(set(timer.trials))


def test_where_nothing_runs_cublas_and_the_defaults_stay() -> None:
    tuned = tune(EVERYTHING, H200, lambda trial: None if trial.tile else 5.0)
    assert "decode" not in tuned.entries
    assert "prefill" not in tuned.entries
    for kind in ("matmul", "whole", "gated", "nf4", "nf4-whole"):
        assert tuned.entries[kind]
        for measured in tuned.entries[kind].values():
            assert set(measured.values()) == {None}


def test_entries_are_those_of_the_shipped_table() -> None:
    entries = tune(EVERYTHING, H200, lambda trial: 1.0 if trial.tile else 2.0).entries
    assert well_formed(entries)
    assert list(entries) == [
        "matmul", "whole", "gated", "decode", "prefill", "nf4", "nf4-whole",
    ]  # fmt: skip
    products = list(map(str, PRODUCT_ROWS))
    assert list(entries["matmul"]["151936x2560"]) == products
    shapes = {"2560x4096", "151936x2560", "19456x2560"}
    assert entries["matmul"].keys() == entries["whole"].keys() == shapes
    assert list(entries["matmul"]["19456x2560"]) == list(map(str, SIDE_ROWS))
    for kind in ("nf4", "nf4-whole"):
        assert entries[kind].keys() == {"2560x4096", "19456x2560"}
        assert list(entries[kind]["2560x4096"]) == list(map(str, NF4_ROWS))
    assert list(entries["gated"]["9728x2560"]) == products
    assert entries["decode"].keys() == {"4x128x8", "3x128x8"}
    assert list(entries["decode"]["4x128x8"]) == list(map(str, DECODE_ROWS))
    assert list(entries["prefill"]["128"]) == ["0"]


def test_few_tiles_of_4_bit_weights_are_compiled() -> None:
    """Compiling takes most of the time: what differs in more than split is compiled anew."""
    timer = FakeTimer(lambda trial: 1.0 if trial.tile else 2.0)
    tune(Shapes(nf4=(SHAPE, (2560, 9728)), nf4_sides=((19_456, 2560),)), H200, timer)
    compiled = {
        trial.tile._replace(split=min(trial.tile.split, 2)) for trial in timer.trials if trial.tile
    }
    assert 15 < len(compiled) < 50, len(compiled)


def test_without_tma_no_tile_uses_it() -> None:
    timer = around(Tile(64, 64, 128, 2, 4, 4, 0))
    tune(PRODUCT, Processor(108, 0), timer)
    assert {trial.tile.tma for trial in timer.trials if trial.tile} == {0}


def test_progress_is_told_from_none_to_all() -> None:
    told: list[tuple[str, int, int]] = []
    tune(PRODUCT, H200, around(Tile(64, 64, 128, 2, 4, 4, 1)), lambda *said: told.append(said))
    assert told[0] == ("tuning products 2560x4096, 1 rows", 0, len(PRODUCT_ROWS))
    assert told[-1] == ("tuning", len(PRODUCT_ROWS), len(PRODUCT_ROWS))


@pytest.mark.parametrize("dip", range(6))
def test_a_climb_goes_both_ways(dip: int) -> None:
    def time(trial: Trial) -> float:
        return float(abs(trial.tile - dip))

    for start in range(6):
        race = Race(time, "products", SHAPE, 1)
        families: list[Any] = [Family(tuple(range(6)), start)]
        assert race.best(families) == dip
