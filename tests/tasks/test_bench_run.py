"""run_bench over a scripted back end: rounds, counts, sweeps, verdicts; no torch, no model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.outputs import RequestOutput
from flexinfer.errors import NotEnoughMemory, UsageError, WriteFailed
from flexinfer.tasks.bench import BenchConfig, BenchReport, Rig, run_bench, write_stats
from flexinfer.tasks.bench_progress import Progress
from flexinfer.tasks.roofline import LayerRead, StepCost
from tests.support.fake_backend import FakeBackend, FakeCheckpoint, FakeClock, fake_rig

OPTIONS = ModelOptions(model="fake-model")
WARM_UP, PREFILL = 1, 3
FIRST_ROUND = WARM_UP + PREFILL


def small(**given: Any) -> BenchConfig:
    """Four prompts of 5 to 9 tokens, 11 new tokens, five rounds."""
    defaults = {"n_prompts": 4, "n_rounds": 5, "max_new_tokens": 11, "prompt_length": "5:9"}
    return BenchConfig(**defaults | given)


def run(rig: Rig, config: BenchConfig | None = None, **engine: Any) -> BenchReport:
    return run_bench(OPTIONS, EngineConfig(**engine), config or small(), rig=rig)


def shorten(*calls: int) -> Any:
    """Tamper script: the second request of those calls comes back one token short."""

    def tamper(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        if call not in calls:
            return outs
        done = outs[1].outputs[0]
        outs[1] = replace(outs[1], outputs=(replace(done, token_ids=done.token_ids[:-1]),))
        return outs

    return tamper


def test_rates_are_of_one_round_each() -> None:
    walls = [9.0, 1.0, 1.0, 1.0, 2.0, 4.0, 1.0, 8.0, 16.0]
    rig, _ = fake_rig(seconds=lambda call, count, new: walls[call])
    row = run(rig).results[0]
    assert row.wall_times_s == (2.0, 4.0, 1.0, 8.0, 16.0)
    assert row.round_tokens == (44,) * 5
    assert row.n_decoded_tokens == 44
    assert (row.median_wall_s, row.best_wall_s) == (4.0, 1.0)
    assert (row.decode_tps_median, row.decode_tps_best) == (11.0, 44.0)
    assert row.warm_up_s == 9.0
    assert row.wall_spread_pct == 375.0


def test_tokens_of_one_round_never_meet_the_wall_of_another() -> None:
    tokens = {4: 10, 5: 1, 6: 4}
    walls = {4: 10.0, 5: 0.5, 6: 1.0}
    rig, _ = fake_rig(
        seconds=lambda call, count, new: walls.get(call, 1.0),
        tamper=lambda call, outs: [
            replace(out, outputs=(replace(out.outputs[0], token_ids=(7,) * tokens.get(call, 1)),))
            for out in outs
        ],
    )
    row = run(rig, small(n_rounds=3, ignore_eos=False, n_prompts=1)).results[0]
    assert row.round_tokens == (10, 1, 4)
    assert row.flagged_rounds == {}
    assert (row.decode_tps_median, row.decode_tps_best) == (2.0, 4.0)
    assert row.n_decoded_tokens == 4


def test_prefill_is_the_median_one_token_call() -> None:
    walls = [9.0, 1.0, 5.0, 2.0] + [10.0] * 5
    rig, held = fake_rig(seconds=lambda call, count, new: walls[call])
    row = run(rig).results[0]
    news = [call[0].sampling.max_new_tokens for call in held.opened[0].calls]
    assert news == [11, 1, 1, 1, 11, 11, 11, 11, 11]
    assert row.n_prompt_tokens == sum(len(r.prompt_token_ids) for r in held.opened[0].calls[0])
    assert row.prefill_tps == pytest.approx(row.n_prompt_tokens / 2.0)


def test_a_short_round_is_flagged_and_enters_no_median() -> None:
    bad = FIRST_ROUND + 1
    rig, _ = fake_rig(
        tamper=shorten(bad), seconds=lambda call, count, new: 0.1 if call == bad else 1.0
    )
    report = run(rig)
    row = report.results[0]
    assert row.flagged_rounds == {2: "43 tokens instead of 44 (1 of 4 requests differ)"}
    assert row.round_tokens == (44, 43, 44, 44, 44)
    assert (row.decode_tps_best, row.best_wall_s, row.n_decoded_tokens) == (44.0, 1.0, 44)
    assert (report.verdict, report.exit_code) == ("flagged", 1)


def test_counts_that_only_cancel_out_are_flagged() -> None:
    def tamper(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        if call < FIRST_ROUND:
            return outs
        return [
            replace(out, outputs=(replace(out.outputs[0], token_ids=(7,) * count),))
            for out, count in zip(outs, (12, 10, 11, 11), strict=True)
        ]

    rig, _ = fake_rig(tamper=tamper)
    row = run(rig).results[0]
    assert row.flagged_rounds[1] == "44 tokens instead of 44 (2 of 4 requests differ)"
    assert row.decode_tps_median is None


def test_failed_and_missing_outputs_are_flagged() -> None:
    def tamper(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        if call == FIRST_ROUND:
            return [replace(outs[0], outputs=(), error="too long"), *outs[1:]]
        return outs[:-1] if call == FIRST_ROUND + 1 else outs

    rig, _ = fake_rig(tamper=tamper)
    row = run(rig, small(ignore_eos=False)).results[0]
    assert row.flagged_rounds == {
        1: "1 of 4 requests failed: too long",
        2: "3 outputs for 4 requests",
    }


def test_every_round_flagged_leaves_no_figure() -> None:
    rig, _ = fake_rig(tamper=shorten(*range(9)))
    report = run(rig)
    row = report.results[0]
    assert row.decode_tps_median is row.median_wall_s is row.n_decoded_tokens is None
    assert len(row.flagged_rounds) == 5
    json.loads(report.to_json())


def test_counters_are_of_the_timed_rounds() -> None:
    rig, _ = fake_rig()
    row = run(rig, small(n_rounds=2)).results[0]
    rounds = (4, 5)  # calls 0 (warm-up), 1, 2 (one-token calls) and 3, 4: two rounds
    assert row.graph_replays == 20
    assert row.eager_steps == 2
    assert row.ttft_s == pytest.approx(0.1 * sum(rounds) / 2)
    assert row.step_ms is not None
    assert (row.step_ms["p50"], row.step_ms["max"]) == (pytest.approx(4.0), pytest.approx(5.0))
    assert row.capture_cudagraph
    assert row.load_s == 1.5


def test_compiling_within_the_rounds_is_said() -> None:
    clock = FakeClock()

    def backend(config: EngineConfig) -> FakeBackend:
        made = FakeBackend(config, clock)

        def compile_late(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
            made.stats.compile_s += 2.0 if call in (0, FIRST_ROUND) else 0.0
            return outs

        made.tamper = compile_late
        return made

    rig, _ = fake_rig(FakeCheckpoint(backend))
    row = run(replace(rig, clock=clock)).results[0]
    assert row.compile_s == 4.0
    assert any("2.0 s of the timed rounds" in notice for notice in row.notices)


def test_sampling_is_what_was_asked() -> None:
    rig, held = fake_rig()
    run(rig, small(temperature=0.0, ignore_eos=False, seed=5))
    sampling = [request.sampling for request in held.opened[0].calls[0]]
    assert {s.temperature for s in sampling} == {0.0}
    assert not any(s.ignore_eos for s in sampling)
    assert [s.seed for s in sampling] == [5, 6, 7, 8]
    first, *rest = ([r.prompt_token_ids for r in call] for call in held.opened[0].calls)
    assert all(prompts == first for prompts in rest)


def test_a_sweep_loads_once_and_closes_every_engine() -> None:
    loads = []
    rig, held = fake_rig()
    rig = replace(rig, load=lambda name, options, report: loads.append(name) or held)
    report = run(rig, small(batch_sizes=(1, 8)), page_size=16, max_batch_size=64)
    assert loads == ["flex"]
    assert [row.max_batch_size for row in report.results] == [1, 8]
    assert [backend.config.max_batch_size for backend in held.opened] == [1, 8]
    assert all(backend.closed and backend.config.page_size == 16 for backend in held.opened)
    assert report.verdict == "ok"
    unfilled = [[n for n in row.notices if "only 4 prompts" in n] for row in report.results]
    assert [len(notices) for notices in unfilled] == [0, 1]


def test_the_sequence_length_is_what_the_workload_needs() -> None:
    rig, held = fake_rig()
    run(rig)
    longest = max(len(r.prompt_token_ids) for r in held.opened[0].calls[0])
    assert held.opened[0].config.max_seq_length == longest + 11
    row = run(rig, max_seq_length=100).results[0]
    assert row.max_seq_length == held.opened[1].config.max_seq_length == 100
    with pytest.raises(UsageError, match="--max-seq-length 12 is too short"):
        run(rig, max_seq_length=12)


def test_a_model_with_too_few_positions_is_told_before_measuring() -> None:
    rig, held = fake_rig(known_positions=12)
    with pytest.raises(UsageError, match="the model serves 12 tokens, this workload takes 19"):
        run(rig)
    assert held.opened[0].closed
    assert not held.opened[0].calls
    rig, _ = fake_rig(known_positions=20)
    assert run(rig, max_seq_length=100).results[0].max_seq_length == 20


def failing(sizes: tuple[int, ...], error: BaseException) -> Rig:
    """A rig whose back ends of those batch sizes cannot be opened."""
    clock = FakeClock()

    def backend(config: EngineConfig) -> FakeBackend:
        if config.max_batch_size in sizes:
            raise error
        return FakeBackend(config, clock)

    return replace(fake_rig(FakeCheckpoint(backend))[0], clock=clock)


def test_a_failure_in_a_sweep_is_a_row_with_the_reason() -> None:
    report = run(failing((8,), NotEnoughMemory("8 GB are missing")), small(batch_sizes=(1, 8, 16)))
    assert [row.error for row in report.results] == [None, "8 GB are missing", None]
    assert report.results[1].decode_tps_median is None
    assert (report.verdict, report.exit_code) == ("failed", 1)


def test_a_sweep_that_fails_whole_has_the_exit_code_of_the_failure() -> None:
    report = run(failing((1, 8), NotEnoughMemory("8 GB are missing")), small(batch_sizes=(1, 8)))
    assert (report.verdict, report.exit_code) == ("failed", 4)


def test_a_failure_of_the_only_row_is_raised() -> None:
    with pytest.raises(NotEnoughMemory):
        run(failing((64,), NotEnoughMemory("8 GB are missing")))


def test_an_interrupt_keeps_the_finished_rows() -> None:
    report = run(failing((8,), KeyboardInterrupt()), small(batch_sizes=(1, 8, 16)))
    assert [row.max_batch_size for row in report.results] == [1]
    assert (report.verdict, report.exit_code) == ("interrupted", 130)
    with pytest.raises(KeyboardInterrupt):
        run(failing((1,), KeyboardInterrupt()), small(batch_sizes=(1, 8)))


def test_roofline_is_floor_over_decode_time() -> None:
    cost = StepCost(1_000, (LayerRead(1, None, True),))
    rig, held = fake_rig(cost=cost, bandwidth=10_000.0)
    row = run(rig).results[0]
    lengths = [len(r.prompt_token_ids) for r in held.opened[0].calls[0]]
    read = 10 * 1_000 + sum(sum(range(n + 1, n + 11)) for n in lengths)
    assert row.roofline is not None
    assert row.roofline.decode_floor_s == pytest.approx(read / 10_000.0)
    assert row.roofline_pct == pytest.approx(100 * (read / 10_000.0) / 0.1)


@pytest.mark.parametrize("missing", ["cost", "bandwidth"])
def test_no_roofline_without_both_halves(missing: str) -> None:
    given: dict[str, Any] = {"cost": StepCost(1_000, ()), "bandwidth": 1e4} | {missing: None}
    rig, _ = fake_rig(**given)
    assert run(rig).results[0].roofline_pct is None


def test_one_new_token_has_no_decode_figures() -> None:
    rig, _ = fake_rig(cost=StepCost(1_000, ()), bandwidth=1e4)
    row = run(rig, small(max_new_tokens=1)).results[0]
    assert row.roofline_pct is None
    assert row.step_ms is None
    assert row.flagged_rounds == {}


def test_stats_are_written_and_a_bad_place_is_found_first(tmp_path: Path) -> None:
    rig, held = fake_rig()
    path = tmp_path / "stats.json"
    report = run(rig, small(stats_path=str(path)))
    assert not path.exists()
    write_stats(report)
    assert json.loads(path.read_text()) == json.loads(report.to_json())
    held.opened.clear()
    for bad in (tmp_path, tmp_path / "no" / "stats.json"):
        with pytest.raises(WriteFailed, match="--stats-path"):
            run(rig, small(stats_path=str(bad)))
    assert not held.opened


def test_a_full_disk_is_write_failed() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    rig, _ = fake_rig()
    with pytest.raises(WriteFailed, match="No space left"):
        write_stats(run(rig, small(stats_path="/dev/full")))


def test_progress_is_told() -> None:
    rig, _ = fake_rig()
    told: list[tuple[str, int, int]] = []
    config = small(n_rounds=2)
    run_bench(OPTIONS, EngineConfig(), config, lambda *line: told.append(line), rig=rig)
    assert [stage for stage, _, _ in told] == ["warm-up", "prefill", "round 1 of 2", "round 2 of 2"]


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
