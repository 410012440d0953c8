"""run_bench over a scripted back end: rounds, counts, sweeps, verdicts; no torch, no model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flexinfer.config import EngineConfig
from flexinfer.engine.requests.outputs import RequestOutput
from flexinfer.tasks.bench.measure.rows import AFTERWARDS
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.roofline import LayerRead, StepCost
from tests.support.fake_backend import (
    FakeBackend,
    FakeCheckpoint,
    FakeClock,
    fake_rig,
    run,
    small,
)

WARM_UP, PREFILL = 1, 3
FIRST_ROUND = WARM_UP + PREFILL


def shorten(*calls: int) -> Any:
    """Tamper script: the second request of those calls comes back one token short."""

    def tamper(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        if call not in calls:
            return outs
        done = outs[1].outputs[0]
        outs[1] = replace(outs[1], outputs=(replace(done, token_ids=done.token_ids[:-1]),))
        return outs

    return tamper


@pytest.mark.parametrize(("backend", "apart"), [("vllm", True), ("flex", False)])
def test_vllm_alone_has_a_process_of_its_own_too(
    backend: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = []

    def child_rows(lane: Any, listener: Any, environment: Any) -> list[BenchResult]:
        children.append(lane.backend)
        environment({})
        return [replace(blank, error="ended") for blank in lane.blanks]

    monkeypatch.setattr("flexinfer.tasks.bench.run.child_rows", child_rows)
    monkeypatch.setattr("flexinfer.tasks.bench.config.check_backend", lambda name: None)
    rig, _ = fake_rig()
    run(replace(rig, apart=True), small(backends=(backend,)))
    assert children == ([backend] if apart else [])


def test_a_bandwidth_of_another_process_is_measured_once_and_late() -> None:
    rig, held = fake_rig(cost=StepCost(10**6, ()))
    held.device = "elsewhere"
    measured: list[bool] = []

    def bandwidth() -> float:
        measured.append(all(backend.closed for backend in held.opened))
        return 1e9

    report = run(replace(rig, bandwidth_apart=bandwidth), small(batch_sizes=(1, 2)))
    assert measured == [True]
    for row in report.results:
        assert row.roofline is not None
        assert row.roofline.copy_gb_per_s == 1.0
        assert AFTERWARDS in row.notices


def test_a_bandwidth_that_cannot_be_measured_late_is_said() -> None:
    rig, held = fake_rig(cost=StepCost(10**6, ()))
    held.device = "elsewhere"

    def bandwidth() -> float:
        raise RuntimeError("CUDA error: out of memory")

    row = run(replace(rig, bandwidth_apart=bandwidth)).results[0]
    assert (row.error, row.roofline, row.roofline_pct) == (None, None, None)
    assert any("no roofline: " in line and "out of memory" in line for line in row.notices)


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


def test_counts_that_only_cancel_out_within_a_request_are_flagged() -> None:
    def tamper(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        one, two = outs[0].outputs
        longer = replace(one, token_ids=(7,) * (len(one.token_ids) + 1))
        shorter = replace(two, token_ids=two.token_ids[:-1])
        return [replace(outs[0], outputs=(longer, shorter)), *outs[1:]]

    rig, _ = fake_rig(tamper=tamper)
    row = run(rig, small(n_samples=2)).results[0]
    assert row.flagged_rounds[1] == "88 tokens instead of 88 (1 of 4 requests differ)"


def test_a_sample_that_is_missing_is_flagged() -> None:
    rig, _ = fake_rig(
        tamper=lambda call, outs: [replace(outs[0], outputs=outs[0].outputs[:-1]), *outs[1:]]
    )
    row = run(rig, small(n_samples=3, ignore_eos=False)).results[0]
    assert row.flagged_rounds[1] == "11 samples instead of 12"


def test_samples_share_the_prefill_of_their_prompt() -> None:
    rig, held = fake_rig(seconds=lambda call, count, new: 2.0)
    row = run(rig, small(n_samples=8)).results[0]
    sampling = [request.sampling.n for call in held.opened[0].calls for request in call]
    assert set(sampling) == {8}
    assert (row.n_samples, row.n_decoded_tokens, row.decode_tps_median) == (8, 4 * 8 * 11, 176.0)
    assert row.n_prompt_tokens is not None
    assert row.prefill_tokens == row.n_prompt_tokens
    assert row.prefill_tps == row.n_prompt_tokens / 2.0
    assert not any("only" in notice for notice in run(rig, small(n_samples=16)).results[0].notices)


def test_the_floor_counts_every_sample() -> None:
    cost = StepCost(1_000, (LayerRead(1, None, True),))
    rig, held = fake_rig(cost=cost, bandwidth=10_000.0)
    row = run(rig, small(n_samples=3)).results[0]
    lengths = [len(r.prompt_token_ids) for r in held.opened[0].calls[0]]
    read = 10 * 1_000 + 3 * sum(sum(range(n + 1, n + 11)) for n in lengths)
    assert row.roofline is not None
    assert row.roofline.decode_floor_s == pytest.approx(read / 10_000.0)


def test_output_that_nobody_could_check_is_said_to_be_unchecked() -> None:
    rig, held = fake_rig()
    row = run(rig).results[0]
    assert row.gate is None
    assert row.notices[-1].startswith("output gate: off (there is no module")
    assert len(held.opened[0].calls) == 9


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
    # calls 0 (warm-up), 1, 2 (one-token calls) and 3, 4: two rounds
    assert row.graph_replays == 20
    assert row.eager_steps == 2
    assert row.ttft_ms is not None
    assert row.ttft_s == pytest.approx(row.ttft_ms["p50"] / 1e3) == pytest.approx(0.4)
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


def test_prefill_and_decode_are_apart_and_percentiles_are_told() -> None:
    walls = [9.0, 1.0, 5.0, 2.0, 10.0, 12.0, 11.0, 14.0, 13.0]
    rig, _ = fake_rig(seconds=lambda call, count, new: walls[call])
    row = run(rig).results[0]
    assert (row.prefill_s, row.decode_s) == (2.0, 10.0)
    assert row.decode_only_tps == pytest.approx(4 * 10 / 10.0)
    assert row.ttft_ms is not None
    assert (row.ttft_ms["p50"], row.ttft_ms["p99"]) == (pytest.approx(700), pytest.approx(900))
    assert row.open_s == 0.0


def test_the_roofline_at_a_batch_is_what_its_steps_must_read() -> None:
    cost = StepCost(1_000, (LayerRead(1, None, True),))
    rig, held = fake_rig(cost=cost, bandwidth=10_000.0)
    row = run(rig).results[0]
    lengths = [len(r.prompt_token_ids) for r in held.opened[0].calls[0]]
    assert row.roofline is not None
    mean = sum(sum(range(n + 1, n + 11)) for n in lengths) / 40
    assert row.roofline.kv_bytes_per_row == pytest.approx(mean)
    assert row.roofline.tps(4) == pytest.approx(4 * 10_000 / (1_000 + 4 * mean))
    assert row.roofline.tps(4) == pytest.approx(40 / row.roofline.decode_floor_s)
