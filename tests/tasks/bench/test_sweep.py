"""run_bench over a scripted back end: sweeps, failures, what is told and written on the way."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flexinfer.config import EngineConfig
from flexinfer.engine.requests.outputs import RequestOutput
from flexinfer.errors import NotEnoughMemory, UsageError, WriteFailed
from flexinfer.tasks.bench.run import Rig, run_bench, write_stats
from tests.support.fake_backend import (
    OPTIONS,
    FakeBackend,
    FakeCheckpoint,
    FakeClock,
    fake_rig,
    run,
    small,
)

WARM_UP, PREFILL = 1, 3
FIRST_ROUND = WARM_UP + PREFILL


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
    unfilled = [[n for n in row.notices if "only 4 sequences" in n] for row in report.results]
    assert [len(notices) for notices in unfilled] == [0, 1]


def test_a_sweep_gives_each_batch_size_as_many_prompts_as_it_holds() -> None:
    rig, held = fake_rig()
    config = small(n_prompts=None, batch_sizes=(1, 8), n_samples=2)
    said: list[str] = []
    report = run_bench(OPTIONS, EngineConfig(), config, notice=said.append, rig=rig)
    assert [row.n_prompts for row in report.results] == [1, 4]
    calls = [backend.calls[0] for backend in held.opened]
    assert [len(requests) for requests in calls] == [1, 4]
    lengths = [max(len(request.prompt_token_ids) for request in call) for call in calls]
    assert [row.max_seq_length for row in report.results] == [length + 11 for length in lengths]
    assert [line for line in said if "--n-prompts not given" in line]


def test_notices_are_told_before_anything_is_measured_and_once() -> None:
    rig, held = fake_rig()
    said: list[str] = []
    calls: list[int] = []

    def notice(line: str) -> None:
        said.append(line)
        calls.append(sum(len(backend.calls) for backend in held.opened))

    run_bench(OPTIONS, EngineConfig(), small(batch_sizes=(8, 16)), notice=notice, rig=rig)
    assert said == [
        "device: fake",
        "--max-batch-size 8: only 4 sequences ever run",
        "--max-batch-size 16: only 4 sequences ever run",
    ]
    assert calls[:2] == [0, 0]
    assert calls[2] == len(held.opened[0].calls)


def test_the_outcome_of_the_output_gate_is_no_notice_but_kept_in_the_row() -> None:
    rig, _ = fake_rig()
    said: list[str] = []
    report = run_bench(OPTIONS, EngineConfig(), small(), notice=said.append, rig=rig)
    assert not [line for line in said if "output gate" in line]
    assert [line for line in report.results[0].notices if "output gate" in line]


def test_what_was_measured_outlives_what_nobody_foresaw() -> None:
    report = run(failing((8,), RuntimeError("an illegal access")), small(batch_sizes=(1, 8, 16)))
    assert [row.max_batch_size for row in report.results] == [1]
    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert str(report.ended_by) == "an illegal access"
    assert json.loads(report.to_json())["error"] == "RuntimeError: an illegal access"
    with pytest.raises(RuntimeError):
        run(failing((1,), RuntimeError("an illegal access")), small(batch_sizes=(1, 8)))


def test_the_sequence_length_is_what_the_workload_needs() -> None:
    rig, held = fake_rig()
    run(rig)
    longest = max(len(r.prompt_token_ids) for r in held.opened[0].calls[0])
    assert held.opened[0].config.max_seq_length == longest + 11
    row = run(rig, max_seq_length=100).results[0]
    assert row.max_seq_length == held.opened[1].config.max_seq_length == 100
    rig = replace(rig, load=pytest.fail)
    with pytest.raises(UsageError, match="--max-seq-length 12 is too short"):
        run(rig, max_seq_length=12)
    sweep = small(batch_sizes=(1, 2), prompt_length="1,9", new_tokens=(3, 40))
    with pytest.raises(UsageError) as told:
        run(rig, sweep, max_seq_length=48)
    assert told.value.hint == "its longest prompt and --max-new-tokens take 49"


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
    error = NotEnoughMemory("8 GB are missing", hint="lower --kv-memory")
    report = run(failing((8,), error), small(batch_sizes=(1, 8, 16)))
    told = "8 GB are missing (lower --kv-memory)"
    assert [row.error for row in report.results] == [None, told, None]
    assert report.results[1].decode_tps_median is None
    assert (report.verdict, report.exit_code) == ("failed", 1)


def test_memory_that_runs_out_in_a_call_is_a_row_too() -> None:
    clock = FakeClock()

    def fail(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        raise NotEnoughMemory("generating ran out of memory")

    def backend(config: EngineConfig) -> FakeBackend:
        made = FakeBackend(config, clock)
        made.tamper = fail if config.max_batch_size == 8 else made.tamper
        return made

    rig = replace(fake_rig(FakeCheckpoint(backend))[0], clock=clock)
    report = run(rig, small(batch_sizes=(1, 8)))
    assert [row.error_code for row in report.results] == [None, 4]
    assert report.results[1].error == "generating ran out of memory"


def test_a_sweep_that_fails_whole_has_the_exit_code_of_the_failure() -> None:
    report = run(failing((1, 8), NotEnoughMemory("8 GB are missing")), small(batch_sizes=(1, 8)))
    assert (report.verdict, report.exit_code) == ("failed", 4)


def test_a_failure_of_the_only_row_is_raised() -> None:
    with pytest.raises(NotEnoughMemory):
        run(failing((64,), NotEnoughMemory("8 GB are missing")))


def test_an_interrupt_keeps_the_finished_rows() -> None:
    report = run(failing((8,), KeyboardInterrupt()), small(batch_sizes=(1, 8, 16)))
    assert [row.max_batch_size for row in report.results] == [1]
    assert report.verdict == "interrupted"
    assert isinstance(report.ended_by, KeyboardInterrupt), "to be raised once the rows are told"
    assert report.as_dict()["error"] is None
    with pytest.raises(KeyboardInterrupt):
        run(failing((1,), KeyboardInterrupt()), small(batch_sizes=(1, 8)))


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


def test_a_disk_that_is_full_already_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, held = fake_rig()
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(WriteFailed, match="no space left"):
        run(rig, small(stats_path=str(tmp_path / "stats.json")))
    assert not held.opened


def test_a_file_that_may_not_be_written_is_found_first(tmp_path: Path) -> None:
    rig, held = fake_rig()
    path = tmp_path / "stats.json"
    path.write_text("{}")
    path.chmod(0o444)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(WriteFailed, match="not writable"):
        run(rig, small(stats_path=str(path)))
    assert not held.opened


def test_a_full_disk_is_write_failed() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    rig, _ = fake_rig()
    with pytest.raises(WriteFailed, match="No space left"):
        write_stats(run(rig, small(stats_path="/dev/full")))
