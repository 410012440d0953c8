"""A run held against an earlier file: what is a regression, what cannot be compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import UsageError
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, render, run_bench, write_stats
from flexinfer.tasks.bench.show.page import page
from tests.support.fake_backend import fake_rig

SMALL: dict[str, Any] = {
    "n_prompts": 4,
    "n_rounds": 1,
    "max_new_tokens": 10,
    "prompt_length": "5:9",
}


def run(seconds: float, **given: Any) -> BenchReport:
    """Measure 40 tokens in `seconds`."""
    rig, _ = fake_rig(seconds=lambda call, count, new: seconds)
    return run_bench(
        ModelOptions(model="fake-model"), EngineConfig(), BenchConfig(**SMALL | given), rig=rig
    )


@pytest.fixture
def before(tmp_path: Path) -> str:
    """Write a baseline of 40 tokens a second at batch 64 and 8."""
    path = tmp_path / "before.json"
    write_stats(run(1.0, batch_sizes=(64, 8), stats_path=str(path)))
    return str(path)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        (1.0, "ok"),
        (0.5, "ok"),
        (1.0 / 0.951, "ok"),
        (1.0 / 0.949, "regression"),
        (2.0, "regression"),
    ],
)
def test_slower_by_more_than_the_threshold_is_exit_1(
    before: str, seconds: float, verdict: str
) -> None:
    report = run(seconds, baseline=before, fail_below=5.0)
    assert report.verdict == verdict
    assert report.exit_code == (verdict == "regression")
    assert report.comparisons[0].change_pct == pytest.approx(100 * (1 / seconds - 1))


def test_without_a_threshold_the_change_is_only_shown(before: str) -> None:
    report = run(4.0, baseline=before)
    assert report.verdict == "ok"
    assert report.comparisons[0].change_pct == pytest.approx(-75.0)


def test_rows_meet_their_own_key_only(before: str) -> None:
    report = run(2.0, baseline=before, fail_below=5.0, batch_sizes=(4, 8))
    fresh, known = report.comparisons
    assert (fresh.change_pct, fresh.regression) == (None, False)
    assert fresh.note == "no figure in the baseline"
    assert known.regression


def test_a_figure_that_was_lost_is_a_regression(before: str) -> None:
    rig, _ = fake_rig(tamper=lambda call, outs: outs[:-1])
    config = BenchConfig(**SMALL, baseline=before, fail_below=50.0)
    report = run_bench(ModelOptions(model="fake-model"), EngineConfig(), config, rig=rig)
    assert report.verdict == "regression"
    assert report.comparisons[0].note == "no figure in this run"


def test_another_workload_is_refused_before_anything_is_timed(before: str) -> None:
    rig, held = fake_rig()
    config = BenchConfig(**SMALL | {"max_new_tokens": 9}, baseline=before)
    rig = replace(rig, load=lambda *words: pytest.fail("weights were loaded"))
    with pytest.raises(UsageError, match=r"no figure for this run: max_new_tokens 9, there 10$"):
        run_bench(ModelOptions(model="fake-model"), EngineConfig(), config, rig=rig)
    assert not held.opened


def test_another_model_is_refused_before_weights_are_loaded(before: str) -> None:
    rig, _ = fake_rig()
    rig = replace(rig, load=lambda *words: pytest.fail("weights were loaded"))
    config = BenchConfig(**SMALL, baseline=before)
    with pytest.raises(UsageError, match=r"model_name other-model, there fake-model$"):
        run_bench(ModelOptions(model="other-model"), EngineConfig(), config, rig=rig)


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"ignore_eos": False}, {"seed": 7}])
def test_what_no_row_says_of_the_workload_must_be_the_same_too(
    before: str, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=f"is of another workload: {next(iter(given))}"):
        run(1.0, baseline=before, **given)


def test_a_row_without_a_figure_is_nothing_to_compare_with(before: str) -> None:
    document = json.loads(Path(before).read_text())
    for row in document["results"]:
        row["decode_tps_median"] = None
    Path(before).write_text(json.dumps(document))
    with pytest.raises(UsageError, match="its rows have none"):
        run(1.0, baseline=before)


def test_samples_of_a_prompt_are_part_of_the_key(before: str) -> None:
    with pytest.raises(UsageError, match="n_samples 2"):
        run(1.0, baseline=before, n_samples=2)


def test_a_file_from_before_there_were_samples_is_read(before: str) -> None:
    document = json.loads(Path(before).read_text())
    for row in document["results"]:
        del row["n_samples"]
    Path(before).write_text(json.dumps(document))
    assert run(2.0, baseline=before, fail_below=5.0).verdict == "regression"


def test_a_file_of_another_schema_is_refused(before: str) -> None:
    document = json.loads(Path(before).read_text())
    Path(before).write_text(json.dumps(document | {"schema_version": 9}))
    with pytest.raises(UsageError, match="has schema version 9, this version reads 1"):
        run(1.0, baseline=before)


@pytest.mark.parametrize(
    ("where", "name"), [("results", "model_name"), ("bench", "seed"), ("", "schema_version")]
)
def test_what_a_file_says_does_not_steer_a_terminal(before: str, where: str, name: str) -> None:
    document, evil = json.loads(Path(before).read_text()), "\x1b[2J\u009bevil\n\u202e"
    rows = document["results"] if where == "results" else [document]
    for row in [document["config"]["bench"]] if where == "bench" else rows:
        row[name] = evil
    Path(before).write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        run(1.0, baseline=before)
    assert r"\x1b[2J\x9bevil\n\u202e" in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no bench results"),
        ("{}", "holds no bench results"),
        ('{"results": [1]}', "holds no bench results"),
        ('{"results": []}', "holds no bench results"),
        ('{"results": [{"backend": "flex"}]}', "holds no bench results"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        run(1.0, baseline=str(path))


def test_a_file_of_another_command_is_refused(before: str) -> None:
    document = json.loads(Path(before).read_text())
    Path(before).write_text(json.dumps(document | {"command": "generate"}))
    with pytest.raises(UsageError, match="holds no bench results"):
        run(1.0, baseline=before)


@pytest.mark.parametrize("figure", ["40", 0, -1.0, [], True, math.inf, math.nan, 10**400, 5e-324])
def test_a_figure_that_is_none_is_refused(before: str, figure: object) -> None:
    document = json.loads(Path(before).read_text())
    document["results"][0]["decode_tps_median"] = figure
    Path(before).write_text(json.dumps(document))
    with pytest.raises(UsageError, match="holds no bench results"):
        run(1.0, baseline=before)


def test_a_key_that_is_none_is_refused(before: str) -> None:
    document = json.loads(Path(before).read_text())
    document["results"][0]["max_batch_size"] = [8]
    Path(before).write_text(json.dumps(document))
    with pytest.raises(UsageError, match="holds no bench results"):
        run(1.0, baseline=before)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        run(1.0, baseline=str(tmp_path / "none.json"))


def rounds(*walls: float, **given: Any) -> BenchReport:
    """Measure 40 tokens in each of these walls, a round each."""
    calls = 1 + min(3, len(walls))
    rig, _ = fake_rig(seconds=lambda call, count, new: 1.0 if call < calls else walls[call - calls])
    config = BenchConfig(**SMALL | {"n_rounds": len(walls)} | given)
    return run_bench(ModelOptions(model="fake-model"), EngineConfig(), config, rig=rig)


CALM, WILD = (1.0, 1.01, 0.99, 1.0, 1.01), (1.0, 1.3, 0.8, 1.2, 0.7)
HIDDEN = (
    "noise {:.1f} % is beyond --fail-below 5: no smaller loss could be detected, "
    "take more rounds (--n-rounds)"
)


@pytest.mark.parametrize(
    ("earlier", "slower", "regression", "note"),
    [
        (CALM, 1.10, True, ""),
        (WILD, 1.10, False, HIDDEN),
        (WILD, 4.00, True, ""),
        (CALM, 1.03, False, ""),
        (CALM, 1.001, False, "within the noise"),
        (WILD, 0.95, False, HIDDEN),
        (WILD, 1.00, False, HIDDEN),
        (WILD, 0.10, False, ""),
    ],
)
def test_a_loss_that_the_rounds_explain_is_told_and_is_none(
    tmp_path: Path, earlier: tuple[float, ...], slower: float, regression: bool, note: str
) -> None:
    path = str(tmp_path / "before.json")
    write_stats(rounds(*earlier, stats_path=path))
    report = rounds(*(slower * wall for wall in earlier), baseline=path, fail_below=5.0)
    (found,) = report.comparisons
    assert found.noise_pct is not None
    assert (found.regression, found.note) == (regression, note.format(found.noise_pct))
    assert found.inconclusive == (note == HIDDEN)
    verdict = "regression" if regression else "inconclusive" if note == HIDDEN else "ok"
    assert (report.verdict, report.exit_code) == (verdict, int(regression))
    text = render(report, "table")
    assert f"noise {found.noise_pct:.1f} %" in text
    assert text.endswith(f"verdict: {verdict}\n")
    changes = next(t for t in page(report).tables if t.title == "Against the baseline")
    assert changes.rows[1][-1] == (verdict if verdict != "ok" else note or "ok")


def test_noise_without_a_threshold_decides_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "before.json")
    write_stats(rounds(*WILD, stats_path=path))
    report = rounds(*WILD, baseline=path)
    (found,) = report.comparisons
    assert (report.verdict, found.inconclusive, found.note) == ("ok", False, "within the noise")


def test_single_rounds_are_judged_by_the_threshold_alone_and_that_is_said(before: str) -> None:
    (found,) = run(2.0, baseline=before, fail_below=5.0).comparisons
    assert (found.noise_pct, found.regression) == (None, True)
    assert found.note == "noise unknown: it takes two rounds on both sides"


@pytest.mark.parametrize(
    "broken",
    [
        {"wall_times_s": ["a", "b"]},
        {"flagged_rounds": {"x": ""}},
        {"round_tokens": 5},
        {"round_tokens": [10**400] * 2},
        {"wall_times_s": [5e-324, 1e308]},
        {"round_tokens": [0, 0]},
    ],
)
def test_rounds_that_cannot_be_read_are_refused_before_anything_is_measured(
    before: str, broken: dict[str, Any]
) -> None:
    document = json.loads(Path(before).read_text())
    document["results"][0] |= {"round_tokens": [1, 1], "wall_times_s": [1.0, 1.0]} | broken
    Path(before).write_text(json.dumps(document))
    with pytest.raises(UsageError, match="holds no bench results"):
        run(1.0, baseline=before)
