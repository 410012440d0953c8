"""The charts of a bench report: its figures, round by round, and what has none is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import WriteFailed
from flexinfer.tasks.bench.page import page, write_page
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, run_bench
from tests.support.fake_backend import fake_rig

OPTIONS = ModelOptions(model="fake-model")


@pytest.fixture(scope="module")
def report() -> BenchReport:
    """One row of 44 tokens in 4 s a round."""
    rig, _ = fake_rig(seconds=lambda call, count, new: 4.0)
    config = BenchConfig(n_prompts=4, max_new_tokens=11, prompt_length="5:9", n_rounds=3)
    return run_bench(OPTIONS, EngineConfig(), config, rig=rig)


def with_rows(report: BenchReport, *changes: dict[str, Any]) -> BenchReport:
    return replace(report, results=tuple(replace(report.results[0], **c) for c in changes))


def test_speed_is_the_median_and_every_round_that_counts(report: BenchReport) -> None:
    changed = {"wall_times_s": (4.0, 2.0, 8.0), "flagged_rounds": {2: "43 tokens"}}
    (bar,) = page(with_rows(report, changed)).charts[0].bars
    assert (bar.label, bar.value, bar.text) == ("flex batch 64", 11.0, "11")
    assert bar.points == [11.0, 5.5]


def test_a_row_without_figures_is_named(report: BenchReport) -> None:
    blank = {"error": "it broke", "decode_tps_median": None, "round_tokens": (), "wall_times_s": ()}
    shown = page(with_rows(report, {}, blank | {"backend": "hf"}))
    speed: Any = shown.charts[0]
    assert [(bar.label, bar.text) for bar in speed.bars] == [
        ("flex batch 64", "11"),
        ("hf batch 64", "failed"),
    ]
    assert "hf batch 64: failed: it broke" in shown.notes


def test_only_what_was_measured_has_a_chart(report: BenchReport) -> None:
    bare = {"step_ms": None, "peak_memory_gb": None, "roofline_pct": None}
    assert [chart.title for chart in page(with_rows(report, bare)).charts] == [
        "Decoded tokens a second"
    ]
    whole = {
        "step_ms": {"p50": 5.0, "p90": 6.0, "p99": 7.0, "max": 9.0},
        "peak_memory_gb": 2.0,
        "roofline_pct": 70.0,
    }
    speed, floor, steps, memory = map(vars, page(with_rows(report, whole, bare)).charts)
    assert floor["limit"] == (100.0, "roofline")
    assert [bar.text for bar in floor["bars"]] == ["70.0 %", "-"]
    assert [(bar.text, bar.points) for bar in steps["bars"]] == [("5.00 ms", [6.0, 7.0]), ("-", [])]
    assert [bar.text for bar in memory["bars"]] == ["2.00 GB", "-"]
    assert speed["unit"].startswith("tokens / s")


def test_the_page_says_what_ran_and_holds_the_table(report: BenchReport) -> None:
    shown = page(report)
    assert "fake-model" in shown.facts[0]
    assert shown.facts[-1] == f"fake, {report.started_at}"
    head, row = shown.tables[0].rows
    assert row[head.index("tok/s")] == "11.0"
    assert shown.notes[-1] == "verdict: ok"


@pytest.mark.parametrize("name", ["out.html", "out.PNG"])
def test_a_run_writes_the_file_it_was_asked_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rig, _ = fake_rig()
    config = BenchConfig(n_prompts=2, n_rounds=1, max_new_tokens=4, report_file=str(path))
    report = run_bench(OPTIONS, EngineConfig(), config, rig=rig)
    assert not path.exists()
    write_page(report)
    assert path.stat().st_size > 10_000


def test_no_file_is_written_that_nobody_asked_for(
    report: BenchReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_page(report)
    assert not list(tmp_path.iterdir())


def test_a_report_that_cannot_be_written_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    rig, checkpoint = fake_rig()
    config = BenchConfig(report_file=str(tmp_path / "none" / "out.png"))
    with pytest.raises(WriteFailed, match="--report"):
        run_bench(OPTIONS, EngineConfig(), config, rig=rig)
    assert not checkpoint.opened
