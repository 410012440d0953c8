"""`bench --profile`: it comes after the rounds, is shown in every format, and costs no figure."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.backends.base.protocol import Backend
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.models.catalog import build_decoder
from flexinfer.tasks.bench.profile.result import OpRow, Profile, StepFigures, Subject
from flexinfer.tasks.bench.run import BenchConfig, render, run_bench
from flexinfer.tasks.roofline import StepCost
from tests.support.engines import tiny
from tests.support.fake_backend import FakeBackend, fake_rig, run, small
from tests.support.tiny import save_tiny

ROW = OpRow(
    name="o product", shape="4x8 -> 8", calls=2, kernels=2, us_each=3.0, us_step=6.0, share_pct=100
)
STEP = StepFigures(rows=4, mean_context=9, steps=3, graph=True, step_us=7.0, busy_us=6.0)


def test_it_comes_after_the_rounds_and_before_the_end() -> None:
    asked: list[Any] = []

    def profiler(backend: Backend, subject: Subject) -> Profile:
        assert isinstance(backend, FakeBackend)
        asked.append((subject, len(backend.calls), backend.closed))
        backend.generate(subject.requests)
        return Profile(timed_by="device", ops=(ROW,), step=STEP)

    cost = StepCost(1000, ())
    rig, held = fake_rig(cost=cost, bandwidth=1e9)
    row = run(replace(rig, profiler=profiler), small(profile=True)).results[0]
    plain = run(fake_rig(cost=cost, bandwidth=1e9)[0]).results[0]
    [(subject, calls, closed)] = asked
    assert calls == len(held.opened[0].calls) - 1 == 1 + 3 + 5
    assert not closed
    assert subject.requests == held.opened[0].calls[-2]
    assert (subject.wall_s, subject.cost, subject.bandwidth) == (row.median_wall_s, cost, 1e9)
    assert row.profile == Profile(timed_by="device", ops=(ROW,), step=STEP)
    assert plain.profile is None
    memory = {"peak_memory_gb": plain.peak_memory_gb}
    assert replace(row, profile=None, **memory) == plain


def test_it_is_in_every_format() -> None:
    rig, _ = fake_rig()
    shown = Profile(timed_by="device", ops=(ROW,), step=STEP)
    report = run(replace(rig, profiler=lambda *given: shown), small(profile=True))
    row = json.loads(render(report, "json"))["results"][0]
    assert row["profile"]["ops"][0]["name"] == "o product"
    cell = next(csv.DictReader(io.StringIO(render(report, "csv"))))["profile"]
    assert json.loads(cell) == row["profile"]
    table, markdown = render(report, "table"), render(report, "md")
    assert "flex batch 64, profile of a decode step:\n\noperation  shape" in table
    assert "in a CUDA graph: 7.0 us; its operations add up to 6.0" in table
    assert "| o product | 4x8 -> 8 | 2 | 2 | 3.00 |" in markdown
    assert table.endswith("verdict: ok\n")
    assert "profile of a decode step" not in render(run(fake_rig()[0]), "table")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (EnvironmentUnfit("no counters here"), "no counters here"),
        (RuntimeError("CUDA out of memory"), "CUDA out of memory"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_where_it_fails_the_figures_stand(error: Exception, why: str) -> None:
    def profiler(backend: Backend, subject: Subject) -> Profile:
        raise error

    rig, _ = fake_rig()
    report = run(replace(rig, profiler=profiler), small(profile=True))
    assert report.verdict == "ok"
    assert report.results[0].decode_tps_median is not None
    assert report.results[0].notices[-1] == f"no profile: {why}"


def test_what_cannot_be_profiled_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="--profile needs --max-new-tokens of 2"):
        BenchConfig(profile=True, max_new_tokens=1)
    with pytest.raises(UsageError, match="--profile is for one row"):
        BenchConfig(profile=True, batch_sizes=(1, 2))
    with pytest.raises(UsageError, match="--profile is for one row"):
        BenchConfig(profile=True, prompt_length="8,16")
    assert BenchConfig(profile=True, max_new_tokens=2, batch_sizes=(2,)).profile


def test_a_real_bench_on_the_cpu(tmp_path: Path) -> None:
    folder = save_tiny("gemma4", tmp_path / "tiny")
    options = ModelOptions(model=str(folder), load_format="dummy", device="cpu")
    config = BenchConfig(
        n_prompts=3, n_rounds=1, max_new_tokens=2, prompt_length="4:12", batch_sizes=(2,),
        profile=True, trace_path=str(tmp_path / "trace.json"),
    )  # fmt: skip
    report = run_bench(options, EngineConfig(attention="dense"), config)
    assert report.verdict == "ok"
    profile = report.results[0].profile
    assert profile is not None
    assert profile.step.rows == 2
    table = render(report, "table")
    assert "timed by the host's clock" in table
    assert "us, of which" not in table, "the operations are no parts of the step that was timed"
    assert "timed in a run of their own" in table
    assert report.results[0].eager_steps == 2
    assert "aten::linear" in table, "the kernels have a table of their own"
    assert f"trace: {tmp_path / 'trace.json'}" in table
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event["name"] == "aten::linear" for event in events)
    layers = len(build_decoder(tiny("gemma4")).specs)
    layered = [row for row in profile.kernels if row.calls_layer is not None]
    assert any(row.name == "aten::linear" for row in layered), "which of them depends on the host"
    for row in layered:
        assert row.calls_step == pytest.approx(row.calls_layer * layers)
        assert row.us_layer == pytest.approx(row.us_step / layers)
    once = [row for row in profile.kernels if row.operation in ("sample", "head")]
    assert all((row.calls_layer, row.us_layer) == (None, None) for row in once)
