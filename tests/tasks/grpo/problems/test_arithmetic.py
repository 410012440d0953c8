"""`arithmetic`: the embedded model's own sums, the same for a seed, never one that is held out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.assets.tiny_gemma4.arithmetic import held_out
from flexinfer.assets.tiny_gemma4.data import chat_prompt
from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.problems.arithmetic import ROWS, Sums
from flexinfer.tasks.grpo.problems.choose import choose_problems


def text(row: Any) -> str:
    """The sum of a row."""
    (message,) = row["prompt"]
    assert message["role"] == "user"
    return str(message["content"])


def pair(row: Any) -> tuple[str, ...]:
    """The operands of a row, in order of size."""
    return tuple(sorted(text(row).removesuffix("=").replace("-", "+").split("+"), key=int))


def test_prompts_are_written_as_the_embedded_model_learned_them() -> None:
    from flexinfer.weights.names import tiny_folder

    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder())
    row = choose_problems("arithmetic", seed=0, count=1).rows[0]
    rendered = tokenizer.apply_chat_template(
        row["prompt"], tokenize=False, add_generation_prompt=True
    )
    assert rendered == chat_prompt(tokenizer, text(row))


def test_every_answer_is_right() -> None:
    problems = choose_problems("Arithmetic", seed=3, count=500)
    for row in [*problems.rows, *problems.held_out]:
        assert int(row["answer"]) == eval(text(row).removesuffix("="))
    assert {row["prompt"][0]["content"][-1] for row in problems.rows} == {"="}


def test_held_out_are_the_test_sums_and_none_is_trained_on() -> None:
    problems = choose_problems("arithmetic", seed=1, count=20_000)
    assert [(text(row), row["answer"]) for row in problems.held_out] == held_out(200)
    assert not {pair(row) for row in problems.held_out} & {pair(row) for row in problems.rows}
    assert problems.rewards == ("exact-answer",)
    assert "20000 sums" in problems.notices[0]


def test_sums_vary_in_pair_and_sign() -> None:
    rows = choose_problems("arithmetic", seed=0, count=5000).rows
    signs = Counter("+" in text(row) for row in rows)
    assert 2300 < signs[True] < 2700
    assert len({text(row) for row in rows}) > 4000


@given(st.integers(0, 2**63 - 1), st.integers(0, 99))
def test_a_sum_depends_on_seed_and_index_alone(seed: int, index: int) -> None:
    assert Sums(seed, 100)[index] == Sums(seed, index + 1)[index] == [*Sums(seed, 100)][index]


def test_seeds_differ() -> None:
    assert [*Sums(0, 50)] != [*Sums(1, 50)]


def test_it_is_a_sequence_like_any_other() -> None:
    sums = Sums(5, 10)
    whole = [*sums]
    assert len(sums) == len(whole) == 10
    assert sums[2:7:2] == whole[2:7:2]
    assert sums[-1] == whole[-1]
    with pytest.raises(IndexError):
        sums[10]


def test_how_many_there_are() -> None:
    assert len(choose_problems("arithmetic", seed=0).rows) == ROWS
    with pytest.raises(UsageError, match="1 or more problems"):
        choose_problems("arithmetic", seed=0, count=0)
