"""--dataset: names, near misses, kinds of files; and the length of prompts."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.grpo.problems.choose import Problems, choose_problems, within_length
from flexinfer.tasks.grpo.problems.held_out import first_held_out
from flexinfer.tasks.grpo.problems.length import percentile_90
from flexinfer.tasks.grpo.problems.problem_set import Prompt


@pytest.mark.parametrize(
    ("name", "near"), [("aritmetic", "arithmetic"), ("gsm-8k", "gsm8k"), ("DAPO", "dapo-math")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"--dataset {name!r} is unknown") as caught:
        choose_problems(name, seed=0)
    assert str(caught.value.hint).startswith(f"did you mean {near}? known: arithmetic, gsm8k, dap")


@pytest.mark.parametrize("name", ["", "zzz", "org/some-set", "p.csv", "p.jsonl.gz"])
def test_any_other_name_lists_them_all(name: str) -> None:
    with pytest.raises(UsageError, match="is unknown") as caught:
        choose_problems(name, seed=0)
    assert "FILE.jsonl and FILE.parquet" in str(caught.value.hint)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("[]")
    with pytest.raises(UsageError, match=r"p\.json: its kind is not read") as caught:
        choose_problems(str(tmp_path / "p.json"), seed=0)
    assert caught.value.hint == "give FILE.jsonl and FILE.parquet"


def made(*lengths: int, name: str = "f.jsonl") -> Problems:
    """Problems whose prompts have so many characters, and two held out of 1 and 9."""
    rows = [{"prompt": "x" * n, "answer": str(i)} for i, n in enumerate(lengths)]
    held_out = [{"prompt": "x", "answer": ""}, {"prompt": "x" * 9, "answer": ""}]
    return Problems(name=name, rows=rows, held_out=held_out, rewards=("answer",), notices=("a",))


def encode(prompt: Prompt) -> tuple[int, ...]:
    """One token a character."""
    assert isinstance(prompt, str)
    return tuple(map(ord, prompt))


def kept(problems: Problems) -> list[str]:
    return [row["answer"] for row in problems.rows]


def test_longer_prompts_are_dropped_and_said() -> None:
    problems = within_length(made(3, 5, 4, 6), encode, 4)
    assert kept(problems) == ["0", "2"]
    assert [len(row["prompt"]) for row in problems.held_out] == [1]
    assert problems.notices == ("a", "prompts: 2 of 4 dropped, longer than 4 tokens")
    assert problems.rewards == ("answer",)


@pytest.mark.parametrize(
    ("wanted", "lengths", "said"),
    [
        (None, [1, 9], ()),
        (0, [], ()),
        (1, [1], ()),
        (2, [1, 9], ()),
        (3, [1, 9], ("--eval-size 3: only 2 held-out problems of f.jsonl, all are scored",)),
    ],
)
def test_the_first_held_out_problems_are_kept(
    wanted: int | None, lengths: list[int], said: tuple[str, ...]
) -> None:
    problems = first_held_out(made(3, 5), wanted)
    assert [len(row["prompt"]) for row in problems.held_out] == lengths
    assert kept(problems) == ["0", "1"]
    assert problems.notices == ("a", *said)


def test_where_none_is_held_out_that_is_said() -> None:
    none = replace(made(3), held_out=())
    assert first_held_out(none, 0).notices == ("a",)
    told = "--eval-size 1: no held-out problems of f.jsonl, none is scored"
    assert first_held_out(none, 1).notices == ("a", told)


def test_without_a_limit_nothing_is_dropped_nor_encoded() -> None:
    def never(prompt: Prompt) -> tuple[int, ...]:
        raise AssertionError

    problems = made(3, 500)
    assert within_length(problems, never, None) is problems
    sums = choose_problems("arithmetic", seed=0)
    assert within_length(sums, never) is sums


def test_dapo_math_loses_its_longest_tenth() -> None:
    lengths = [*range(1, 101)]
    problems = within_length(made(*lengths, name="dapo-math"), encode)
    assert kept(problems) == [str(i) for i in range(90)]
    assert problems.notices[-1] == (
        "prompts: 10 of 100 dropped, longer than 90 tokens, the 90th percentile"
    )
    given_limit = within_length(made(*lengths, name="dapo-math"), encode, 95)
    assert len(given_limit.rows) == 95


@given(st.lists(st.integers(1, 50), min_size=2, max_size=60))
def test_the_percentile_keeps_what_the_interpolated_one_keeps(lengths: list[int]) -> None:
    interpolated = statistics.quantiles(lengths, n=10, method="inclusive")[-1] + 1e-9
    kept_here = [n for n in lengths if n <= percentile_90(lengths)]
    assert kept_here == [n for n in lengths if n <= interpolated]


def test_one_problem_alone_is_kept() -> None:
    assert kept(within_length(made(7, name="dapo-math"), encode)) == ["0"]


def test_nothing_left_is_an_error_that_says_the_shortest() -> None:
    with pytest.raises(
        UsageError, match=r"length 2: every prompt of f\.jsonl is longer, the .* 3 "
    ):
        within_length(made(5, 3), encode, 2)


def test_a_prompt_that_cannot_be_encoded_is_named() -> None:
    def strict(prompt: Prompt) -> tuple[int, ...]:
        if len(prompt) == 5:
            raise RequestError("the chat template refuses the messages: no")
        return encode(prompt)

    with pytest.raises(UsageError, match=r"--dataset f\.jsonl, row 2: the chat template refuses"):
        within_length(made(3, 5), strict, 9)
