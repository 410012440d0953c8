"""The charts of a bench report: its figures, round by round, and what has none is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import WriteFailed
from flexinfer.tasks.bench.result import Roofline
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, run_bench
from flexinfer.tasks.bench.show.breakdown import breakdowns, round_parts, start_parts
from flexinfer.tasks.bench.show.page import page, write_page
from flexinfer.tasks.bench.show.throughput import throughput
from flexinfer.tasks.charts.html import as_html
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
    speed: Any = page(with_rows(report, changed)).charts[0]
    (bar,) = speed.bars
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
    bare = {"step_ms": None, "ttft_ms": None, "peak_memory_gb": None, "roofline_pct": None}
    assert [chart.title for chart in page(with_rows(report, bare)).charts] == [
        "Decoded tokens a second", "One round", "Before the rounds",
    ]  # fmt: skip
    whole = {
        "step_ms": {"p50": 5.0, "p90": 6.0, "p99": 7.0, "max": 9.0},
        "ttft_ms": {"p50": 50.0, "p90": 60.0, "p99": 70.0, "max": 90.0},
        "peak_memory_gb": 2.0,
        "roofline_pct": 70.0,
    }
    charts = page(with_rows(report, whole, bare)).charts
    speed, floor, _, _, steps, first, memory = map(vars, charts)
    assert floor["limit"] == (100.0, "roofline")
    assert [bar.text for bar in floor["bars"]] == ["70.0 %", "-"]
    assert [(bar.text, bar.points) for bar in steps["bars"]] == [
        ("p50 5.00 ms", [6.0, 7.0]),
        ("-", []),
    ]
    assert [bar.text for bar in first["bars"]] == ["p50 50.0 ms", "-"]
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


FLOOR = Roofline(
    weight_gb=2.0, kv_bytes_per_token=100, kv_bytes_per_row=1e6, copy_gb_per_s=1000.0,
    decode_floor_s=1.5,
)  # fmt: skip


def sweep(report: BenchReport) -> BenchReport:
    """Two back ends at two batch sizes, one of the four rows failed."""
    figures = {"median_wall_s": 4.0, "prefill_s": 1.0, "roofline": FLOOR, "load_s": 5.0,
               "open_s": 3.0, "compile_s": 2.0, "capture_s": 0.5, "warm_up_s": 6.0}  # fmt: skip
    failed = {"decode_tps_median": None, "median_wall_s": None, "error": "it broke"}
    return with_rows(
        with_rows(report, {"n_prompts": 8}),
        {"max_batch_size": 1, **figures},
        {"max_batch_size": 8, **figures, "decode_tps_median": 44.0},
        {"max_batch_size": 1, "backend": "hf", **figures, "decode_tps_median": 4.0},
        {"max_batch_size": 8, "backend": "hf", **failed},
    )


def test_throughput_is_over_batch_sizes_against_the_roofline(report: BenchReport) -> None:
    chart: Any = page(sweep(report)).charts[0]
    assert (chart.title, chart.wide, chart.ticks) == ("Throughput over batch size", True, [1, 8])
    floor, flex, hf = chart.lines
    assert (floor.dashed, floor.label) == (True, "memory roofline (1,000 GB/s)")
    assert (floor.x[0], floor.x[-1]) == (1, pytest.approx(8))
    assert floor.values[0] == pytest.approx(1e12 / (2e9 + 1e6))
    assert floor.values[-1] == pytest.approx(8e12 / (2e9 + 8e6))
    assert (flex.label, flex.x, flex.values) == ("flex", [1, 8], [11.0, 44.0])
    assert (hf.label, hf.x, hf.values) == ("hf", [1], [4.0])
    assert flex.group != hf.group
    assert (flex.low, flex.high) == ([11.0, 11.0], [11.0, 11.0])


def test_one_batch_without_a_floor_is_no_curve(report: BenchReport) -> None:
    assert throughput(report.results) == []
    full = {"roofline": FLOOR, "max_batch_size": 8, "n_prompts": 8}
    (chart,) = throughput(with_rows(report, full).results)
    floor = chart.lines[0]
    assert (floor.x[0], floor.x[-1]) == (4, pytest.approx(8))


def test_a_batch_that_the_prompts_do_not_fill_is_no_place_on_the_axis(report: BenchReport) -> None:
    """Four prompts of two samples: eight sequences at most, whatever the batch."""
    sizes = [{"max_batch_size": size, "n_samples": 2, "roofline": FLOOR} for size in (2, 8, 64)]
    shown = with_rows(report, *sizes)
    (chart,) = throughput(shown.results)
    floor, flex = chart.lines
    assert (chart.ticks, flex.x) == ([2, 8], [2, 8, 8])
    assert floor.x[-1] == pytest.approx(8)
    assert as_html(page(shown))


def test_rooflines_of_other_weights_are_told_apart(report: BenchReport) -> None:
    packed = {"roofline": replace(FLOOR, weight_gb=1.0), "quantization": "nf4"}
    rows = with_rows(report, {"roofline": FLOOR}, packed)
    (chart,) = throughput(rows.results)
    assert [line.label for line in chart.lines if line.dashed] == [
        "memory roofline of flex plain (1,000 GB/s)", "memory roofline of flex nf4 (1,000 GB/s)",
    ]  # fmt: skip


def test_time_is_broken_down_into_what_it_went_for(report: BenchReport) -> None:
    row = sweep(report).results[0]
    assert round_parts(row) == {
        "prefill": 1.0, "decode: reading memory": 1.5, "decode: above the floor": 1.5,
    }  # fmt: skip
    assert round_parts(replace(row, roofline=None)) == {"prefill": 1.0, "decode": 3.0}
    assert start_parts(row) == {"load": 5.0, "compile": 2.0, "capture": 0.5, "other start": 2.5}
    gated = replace(row, gate_s=4.0, compile_s=6.0)
    assert start_parts(gated)["other start"] == 3.0 + 4.0 + 2.0 - 6.5, "compiled in the gate"
    charts: Any = breakdowns(sweep(report).results)
    assert [chart.labels for chart in charts] == [
        ["flex batch 1", "flex batch 8", "hf batch 1"]
    ] * 2
    assert charts[0].texts == ["4 s"] * 3


def test_the_settings_and_the_verdict_are_on_the_page(report: BenchReport) -> None:
    shown = page(report)
    tables = {table.title: table for table in shown.tables}
    assert ["n_rounds", "3"] in tables["Workload"].rows
    assert ["model", "fake-model"] in tables["Model"].rows
    assert ["device", "fake"] in tables["Environment"].rows
    assert ["flex", "device: fake"] in tables["What ran"].rows
    assert shown.verdict == ("ok", True)
    failed = page(sweep(report))
    assert failed.verdict == ("failed", False)
    assert ["hf batch 8", "it broke"] in {t.title: t for t in failed.tables}["Failed"].rows


def test_the_first_figures_are_of_the_fastest_row(report: BenchReport) -> None:
    tiles = {tile.title: tile for tile in page(sweep(report)).tiles}
    assert (tiles["tokens a second"].value, tiles["tokens a second"].note) == ("44", "flex batch 8")
    assert "times hf" not in tiles, "hf has no figure at that batch"
    faster = with_rows(report, {}, {"backend": "hf", "decode_tps_median": 5.5})
    assert {t.title: t.value for t in page(faster).tiles}["times hf"] == "2.00"
    assert page(with_rows(report, {"decode_tps_median": None})).tiles == []


def test_an_adapter_leads_though_it_is_brought_in_otherwise(report: BenchReport) -> None:
    adapter = {"lora_adapter": "random:8"}
    beside = {"backend": "hf", "lora_mode": "runtime", "decode_tps_median": 5.5} | adapter
    plain = {"backend": "hf", "decode_tps_median": 8.0}
    merged = {"lora_mode": "merged"} | adapter
    (lead,) = [
        tile
        for tile in page(with_rows(report, merged, beside, plain)).tiles
        if tile.title == "times hf"
    ]
    assert (lead.value, lead.note) == ("2.00", "at the same batch, there LoRA runtime")


def test_the_html_needs_nothing_else(report: BenchReport) -> None:
    text = as_html(page(with_rows(report, {"model_name": "<b>odd</b>"}))).decode()
    assert "<b>odd" not in text
    assert "&lt;b&gt;odd" in text
    for outside in ("http://", "https://", "<script", "<link", "@import"):
        assert outside not in text


def test_what_ran_is_said_of_the_back_ends_it_is_true_of(report: BenchReport) -> None:
    rows = with_rows(
        report,
        {"notices": ("device: cpu", "attention: dense", "output gate: ok")},
        {"notices": ("device: cpu", "attention: sdpa"), "backend": "hf"},
    )
    (ran,) = [table for table in page(rows).tables if table.title == "What ran"]
    assert ran.rows[1:] == [
        ["flex, hf", "device: cpu"],
        ["flex", "attention: dense"],
        ["hf", "attention: sdpa"],
    ]
