"""What leaves bench as text: every field that scripts rely on, in every format."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import NotEnoughMemory, UsageError
from flexinfer.tasks.bench.compare.gate import Gate
from flexinfer.tasks.bench.run import (
    FORMATS,
    BenchConfig,
    BenchReport,
    BenchResult,
    Comparison,
    render,
    run_bench,
)
from tests.support.fake_backend import fake_rig

PROMISED = {
    "backend",
    "model_name",
    "capture_cudagraph",
    "lora_adapter",
    "n_prompts",
    "n_decoded_tokens",
    "wall_times_s",
    "median_wall_s",
    "best_wall_s",
    "decode_tps_median",
    "decode_tps_best",
    "max_new_tokens",
    "peak_memory_gb",
    "sample_completions",
    "prefill_tps",
    "ttft_s",
    "step_ms",
    "load_s",
    "compile_s",
    "capture_s",
    "roofline_pct",
    "graph_replays",
    "eager_steps",
    "preemptions",
    "round_tokens",
    "prefill_tokens",
    "n_samples",
    "gate",
}


@pytest.fixture(scope="module")
def report() -> BenchReport:
    """Return one finished row of 44 tokens in 4 s a round."""
    rig, _ = fake_rig(seconds=lambda call, count, new: 4.0)
    config = BenchConfig(n_prompts=4, max_new_tokens=11, prompt_length="5:9")
    return run_bench(ModelOptions(model="fake-model"), EngineConfig(), config, rig=rig)


def with_row(report: BenchReport, **changes: Any) -> BenchReport:
    return replace(report, results=(replace(report.results[0], **changes),))


def test_json_keeps_every_promise(report: BenchReport) -> None:
    document = json.loads(render(report, "json"))
    assert set(document["results"][0]) >= PROMISED
    assert {"schema_version", "command", "config", "environment", "started_at"} <= set(document)
    assert document["command"] == "bench"
    assert set(document["config"]) == {"model", "engine", "bench"}
    assert document["environment"] == {"device": "fake"}
    assert document["verdict"] == "ok"
    assert "same round" in document["definitions"]["decode_tps"]
    row = document["results"][0]
    assert row["wall_times_s"] == [4.0] * 5
    assert row["sample_completions"] == ["7" * 11] * 3
    assert row["peak_memory_gb"] > 0
    assert row["roofline_pct"] is None


def test_json_names_the_flagged_round(report: BenchReport) -> None:
    text = with_row(report, flagged_rounds={2: "43 tokens instead of 44"}).to_json()
    assert json.loads(text)["results"][0]["flagged_rounds"] == {"2": "43 tokens instead of 44"}
    assert json.loads(text)["verdict"] == "flagged"


def test_json_refuses_what_is_no_number(report: BenchReport) -> None:
    with pytest.raises(ValueError, match="JSON"):
        with_row(report, ttft_s=float("nan")).to_json()


def test_csv_holds_every_field_and_reads_back(report: BenchReport) -> None:
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    assert list(rows[0]) == [field.name for field in fields(BenchResult)]
    assert json.loads(rows[0]["round_tokens"]) == [44] * 5
    assert float(rows[0]["decode_tps_median"]) == 11.0
    assert rows[0]["lora_adapter"] == ""
    assert rows[0]["capture_cudagraph"] == "true"


def test_table_columns_line_up(report: BenchReport) -> None:
    lines = render(report, "table").splitlines()
    head, rule, row = (line for line in lines[2:5])
    assert "fake-model" in lines[0]
    assert len(head) == len(rule) == len(row)
    at = head.index("tok/s") + len("tok/s")
    assert row[:at].endswith(" 11.0")
    assert max(map(len, (head, rule, row))) <= 100


def test_a_sweep_has_one_heading_with_the_prompts_of_each_row(report: BenchReport) -> None:
    rows = tuple(replace(report.results[0], n_prompts=n, max_batch_size=n) for n in (1, 8))
    heading = render(replace(report, results=rows), "table").split("\n\n")[0]
    assert heading.splitlines() == [
        "fake-model (flex, CUDA graphs): 1, 8 prompts of 5:9 tokens, 11 new"
    ]


def test_markdown_rows_have_as_many_cells_as_the_head(report: BenchReport) -> None:
    lines = [line for line in render(report, "md").splitlines() if line.startswith("|")]
    assert len(lines) == 3
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("form", ["table", "md"])
def test_words_say_what_columns_cannot(report: BenchReport, form: str) -> None:
    lost = Comparison(
        label="flex fake-model batch 64",
        decode_tps_baseline=22.0,
        decode_tps_now=11.0,
        change_pct=-50.0,
        regression=True,
    )
    flagged = with_row(report, flagged_rounds={2: "43 tokens instead of 44"})
    text = render(replace(flagged, comparisons=(lost,)), form)
    assert "prefill included" in text
    assert "round 2 left out: 43 tokens instead of 44" in text
    assert "-50.0 % (22.0 -> 11.0) REGRESSION" in text
    assert "verdict: regression" in text


GATE = Gate(
    checked=60, agreed=60, skipped_for_margin=4, mean_logprob_gap=0.0123, max_logprob_gap=0.2,
    logprob_limit=0.05, noise=0.25, dtype="bfloat16", longest_context=700,
)  # fmt: skip


@pytest.mark.parametrize("form", ["table", "md"])
def test_words_say_what_was_checked(report: BenchReport, form: str) -> None:
    assert "flex batch 64: output gate: off, the output is unchecked" in render(report, form)
    text = render(with_row(report, gate=GATE, n_samples=8), form)
    assert "4 prompts of 5:9 tokens, 8 samples each, 11 new" in text
    assert (
        "flex batch 64: output gate: 60 of 60 tokens are the reference's (4 more within the noise "
        "of 0.25 logits in bfloat16), mean log-probability gap 0.012; contexts up to 700 tokens"
    ) in text


def test_a_table_tells_at_once_of_all_rows_that_passed(report: BenchReport) -> None:
    noisier = replace(GATE, checked=50, agreed=50, skipped_for_margin=14, noise=0.5)
    rows = (
        replace(report.results[0], gate=GATE),
        replace(report.results[0], backend="hf", gate=noisier),
    )
    both = replace(report, results=rows)
    worst = (
        "output gate: all 2 rows passed; at worst 50 of 50 tokens are the reference's (14 more "
        "within the noise of 0.5 logits in bfloat16), mean log-probability gap 0.012; contexts up "
        "to 700 tokens"
    )
    text = render(both, "table")
    assert worst in text
    assert text.count("output gate") == 1
    for form in ("md", "json"):
        assert worst not in render(both, form)
    assert render(both, "md").count("output gate: ") == 2
    wrong = replace(GATE, agreed=59, problem="wrong output: new token 3")
    lost = replace(report.results[0], max_batch_size=8, gate=wrong, error=wrong.problem)
    unchecked = replace(report.results[0], backend="vllm", max_batch_size=2)
    text = render(replace(report, results=(*rows, lost, unchecked)), "table")
    assert "output gate: 2 of 4 rows passed; at worst 50 of 50" in text
    assert "flex batch 8: failed: wrong output: new token 3" in text
    assert "vllm batch 2: output gate: off" in text


def test_wrong_output_is_the_verdict_and_exit_1(report: BenchReport) -> None:
    wrong = replace(GATE, agreed=59, problem="wrong output: new token 3")
    failed = with_row(report, gate=wrong, error=wrong.problem, error_code=1)
    assert (failed.verdict, failed.exit_code) == ("wrong output", 1)
    document = json.loads(failed.to_json())
    assert document["verdict"] == "wrong output"
    assert document["results"][0]["gate"]["agreed"] == 59
    assert "verdict: wrong output" in render(failed, "table")
    both = replace(failed, results=(*failed.results, replace(failed.results[0], gate=None)))
    assert both.verdict == "wrong output"


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_without_figures_renders(form: str) -> None:
    rig, held = fake_rig()

    def refuse(config: EngineConfig) -> Any:
        raise NotEnoughMemory("8 GB are missing")

    held.open_backend = refuse
    config = BenchConfig(n_prompts=2, max_new_tokens=4, prompt_length="5", batch_sizes=(1, 2))
    report = run_bench(ModelOptions(model="fake-model"), EngineConfig(), config, rig=rig)
    assert "8 GB are missing" in render(report, form)


def test_an_unknown_format_is_exit_2(report: BenchReport) -> None:
    with pytest.raises(UsageError, match="table, json, csv, md"):
        render(report, "xml")


def test_a_missing_roofline_is_explained_and_only_that(report: BenchReport) -> None:
    row = report.results[0]
    assert row.roofline_pct is None
    for form in ("table", "md"):
        assert "roofline %: none without a CUDA device" in render(report, form)
        assert "roofline %: none" not in render(with_row(report, roofline_pct=50.0), form)


def test_a_table_wider_than_the_screen_becomes_a_list(report: BenchReport) -> None:
    wide, narrow = render(report, "table"), render(report, "table", 40)
    table = next(line for line in wide.splitlines() if line.lstrip().startswith("backend"))
    assert table in render(report, "table", len(table)).splitlines()
    assert render(report, "table", len(table)).split() == wide.split()
    assert table not in render(report, "table", len(table) - 1).splitlines()
    assert "backend: flex" in narrow.splitlines()
    assert "tok/s: 11.0" in narrow.splitlines()
    assert max(map(len, narrow.splitlines())) <= 40
    assert render(report, "csv", 40) == render(report, "csv")
    assert narrow.split() != wide.split()
    assert narrow.endswith("verdict: ok\n")


def test_a_narrow_screen_goes_without_the_columns_that_say_least(report: BenchReport) -> None:
    row = replace(report.results[0], decode_tps_median=12345.0, peak_memory_gb=123.45)
    rows = (row, replace(row, backend="hf-cb"))
    text = render(replace(report, results=rows), "table", 80)
    head = next(line for line in text.splitlines() if line.startswith("backend"))
    assert "best" not in head
    assert "roofline" not in head
    assert "left out for want of width: roofline %, best (--format md has all)\n" in text
    assert "backend: flex" not in text
    assert max(map(len, text.splitlines())) <= 80
    known = tuple(replace(row, roofline_pct=50.0) for row in rows)
    text = render(replace(report, results=known), "table", 80)
    head = next(line for line in text.splitlines() if line.startswith("backend"))
    assert "roofline %" in head
    assert "left out for want of width: best, p99 ms, prefill/s (" in text


@pytest.mark.parametrize("form", ["table", "md"])
def test_the_legend_says_what_a_figure_holds(report: BenchReport, form: str) -> None:
    text = render(report, form)
    assert "ttft s: from the start of the call to a request's first token, p50" in text
    assert "peak GB: without a CUDA device the largest resident set" in text
    on_device = with_row(report, peak_memory_gb=20.0, peak_reserved_gb=21.0, ttft_s=None)
    text = render(on_device, form)
    assert "resident set" not in text
    assert "ttft s: " not in text


def test_rounds_that_scatter_are_told_of(report: BenchReport) -> None:
    row = report.results[0]
    rows = tuple(
        replace(row, max_batch_size=size, wall_spread_pct=spread)
        for size, spread in ((1, 10.0), (2, 14.4), (4, None), (8, 69.0))
    )
    text = render(replace(report, results=rows), "table")
    assert "of the median): flex batch 2 by 14 %, flex batch 8 by 69 %; a smaller" in text
    assert "rounds scatter" not in render(replace(report, results=rows[:1]), "table")
