"""The charts of a run hold its steps; what there is no figure of has no chart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.tasks.grpo.records.report import page, write_page
from flexinfer.tasks.grpo.records.step_row import COLUMNS, line, rows
from flexinfer.tasks.grpo.records.summary import as_text
from tests.support.steps import made_report, made_step

STEPS = [made_step(n, rewards={"a": 0.1 * n, "b": 1.0}, clipped_fraction=0.0) for n in (3, 4)]


def charts(*steps: Any, **changes: Any) -> dict[str, Any]:
    return {chart.title: chart for chart in page(made_report(*steps, **changes)).charts}


def test_each_figure_is_drawn_over_the_numbers_of_its_steps() -> None:
    found = charts(*STEPS)
    assert all(list(chart.x) == [3, 4] for chart in found.values())
    reward = found["Reward"].series[0]
    assert (reward.values, reward.low, reward.high) == (
        [0.503, 0.504],
        [0.253, 0.254],
        [0.753, 0.754],
    )
    functions = {series.label: series.values for series in found["Reward by function"].series}
    assert functions == {"a": [pytest.approx(0.3), 0.4], "b": [1.0, 1.0]}
    time = found["Time of a step"]
    assert time.stacked
    assert [(s.label, s.values[0]) for s in time.series] == [
        ("generate", 2.25),
        ("refresh", 0.03),
        ("train", 3.5),
    ]
    gap = found["Rollout against trainer"]
    assert gap.log
    assert [series.values[0] for series in gap.series] == [1.5e-6, 2.5e-5]
    assert found["Completion length"].series[0].values == [6.25, 6.25]
    assert found["Generation speed"].series[0].values == [1820.4, 1820.4]


def test_only_what_there_is_has_a_chart() -> None:
    bare = [replace(step, rewards={"a": 1.0}) for step in STEPS]
    assert set(charts(*bare)) == {
        "Reward",
        "Completion length",
        "Time of a step",
        "Rollout against trainer",
        "Generation speed",
    }
    assert "KL from the base model" in charts(*STEPS, made_step(5, kl=0.5))
    clipped = charts(*STEPS, made_step(5, clipped_fraction=0.25))["Clipped completions"]
    assert clipped.series[0].values == [0.0, 0.0, 25.0]


def test_a_step_without_a_reward_function_leaves_a_gap() -> None:
    found = charts(*STEPS, made_step(5, rewards={"c": 2.0}))["Reward by function"]
    assert {s.label: s.values for s in found.series}["c"] == [None, None, 2.0]


def test_the_limit_on_lengths_is_drawn_where_it_is_near() -> None:
    near = charts(*STEPS, max_completion_length=8)["Completion length"]
    assert near.limit == (8.0, "--max-completion-length 8")
    assert charts(*STEPS, max_completion_length=26)["Completion length"].limit is None


def test_the_page_says_what_ran_and_how_far() -> None:
    report = made_report(
        *STEPS, accuracy_before=0.5, accuracy_after=0.75, held_out=200, interrupted=True
    )
    shown = page(replace(report, notices=("device: cpu",)))
    assert shown.title == "train-grpo: tiny-gemma4"
    assert "2 of 200 steps, interrupted" in shown.facts[0]
    assert shown.facts[1].startswith("fake, 2026")
    assert shown.facts[2] == (
        "accuracy on 200 held-out problems: 50.0% ± 6.9 before, 75.0% ± 6.0 after (± 95 %)"
    )
    assert shown.tables[0].rows == rows(STEPS)
    assert shown.notes[0] == "device: cpu"


@pytest.mark.parametrize("name", ["run.png", "run.html"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_run_of_any_length_is_written(tmp_path: Path, name: str, count: int) -> None:
    write_page(tmp_path / name, made_report(*STEPS[:count]))
    assert (tmp_path / name).stat().st_size > 2000


def test_a_row_has_every_figure_once() -> None:
    assert dict(zip(*rows([made_step(7, kl=0.25)]), strict=True)) == {
        "step": "7",
        "reward": "0.507",
        "kl": "2.5e-01",
        "gap mean": "1.5e-06",
        "length": "6.2",
        "clipped %": "12",
        "generate s": "2.25",
        "refresh s": "0.03",
        "train s": "3.50",
        "rollout tok/s": "1,820",
    }
    assert line(made_step(7), 200) == (
        "step 7/200: reward 0.507, gap mean 1.5e-06, length 6.2, clipped 12 %, "
        "generate 2.25 s, refresh 0.03 s, train 3.50 s, rollout 1,820 tok/s"
    )


def test_kl_is_a_column_where_it_is_computed() -> None:
    assert not {"kl"} & {*rows(STEPS)[0]}
    assert [row[2] for row in rows([made_step(1, kl=0.25), made_step(2)])] == ["kl", "2.5e-01", "-"]
    assert "kl 2.5e-01, gap mean" in line(made_step(7, kl=0.25), 200)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, ["1 step in 12.5 s", "reward: 0.501", "the step: generate 2.25 s"]),
        (2, ["2 steps in 12.5 s", "reward: 0.501 -> 0.502 (first and last step)", "median step:"]),
        (20, ["reward: 0.502 -> 0.520 (first and last 2 of the steps)", "median step: generate"]),
    ],
)
def test_the_summary_of_a_run_of_any_length(count: int, told: list[str]) -> None:
    lines = as_text(made_report(*(made_step(n + 1) for n in range(count)))).splitlines()
    assert all(any(part in text for text in lines) for part in told), lines
    assert ("reward: 0.501" in lines) == (count == 1)
    assert any("largest gap of a token 2.5e-05" in text for text in lines)


def test_rows_fit_a_terminal() -> None:
    assert sum(column.width + 1 for column in COLUMNS) <= 80
    assert all(len(column.name) <= column.width for column in COLUMNS)
    large = made_step(
        99999, reward=-12.345, kl=1e-9, tokens_per_s=99999.0, generate_s=999.99, train_s=999.9
    )
    for column, cell in zip(COLUMNS, rows([large])[1], strict=True):
        assert len(cell) <= column.width + 1, column.name
