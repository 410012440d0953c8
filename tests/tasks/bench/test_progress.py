"""What is told while a run goes on: its calls, how long they will take, an engine's steps."""

from __future__ import annotations

import pytest

from flexinfer.config import EngineConfig
from flexinfer.tasks.bench.measure.progress import Progress
from flexinfer.tasks.bench.run import run_bench
from tests.support.fake_backend import OPTIONS, FakeClock, fake_rig, small


def test_progress_is_told() -> None:
    rig, _ = fake_rig()
    told: list[tuple[str, int, int]] = []
    config = small(n_rounds=2)
    run_bench(OPTIONS, EngineConfig(), config, lambda *line: told.append(line), rig=rig)
    assert [stage for stage, _, _ in told] == ["warm-up", "prefill", "round 1 of 2", "round 2 of 2"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (20.0, ["prefill", "round 1 of 3", "round 2 of 3", "round 3 of 3"]),
        (90.0, [
            "prefill, then about 4 min 30 s for 3 rounds",
            "round 1 of 3, about 4 min 30 s left",
            "round 2 of 3, about 3 min left",
            "round 3 of 3, about 1 min 30 s left",
        ]),
    ],
)  # fmt: skip
def test_a_long_run_says_after_the_warm_up_how_long(seconds: float, said: list[str]) -> None:
    told: list[str] = []
    rig, _ = fake_rig(seconds=lambda call, count, new: seconds if new > 1 else 0.1)
    run_bench(
        OPTIONS, EngineConfig(), small(n_rounds=3), lambda *line: told.append(line[0]), rig=rig
    )
    assert told[told.index("warm-up") + 1 :][: len(said)] == said


def test_an_engines_steps_are_told_once_a_second() -> None:
    clock, told = FakeClock(), list[tuple[str, int, int]]()
    progress = Progress(lambda *line: told.append(line), clock)
    progress.enter("round 1 of 2")
    for done in range(12):
        clock.now += 0.25
        progress("generating", done, 12)
    progress("compiling", 0, 0)
    counted = [line for line in told if line[2]]
    assert counted == [("round 1 of 2: generating", done, 12) for done in (3, 7, 11)]
    assert told[-1] == ("round 1 of 2: compiling", 0, 0)
