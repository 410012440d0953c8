"""The sums: right answers, and a held-out part that training never sees."""

from __future__ import annotations

from itertools import islice

import pytest

from flexinfer.assets.tiny_gemma4.arithmetic import held_out, is_held_out, problem, problems


def operands(prompt: str) -> tuple[int, int]:
    first, second = prompt.removesuffix("=").replace("-", "+").split("+")
    return int(first), int(second)


def test_answers_are_right() -> None:
    assert problem(12, "+", 30) == ("12+30=", "42")
    assert problem(3, "-", 10) == ("3-10=", "-7")
    for prompt, answer in [*held_out(200), *islice(problems(1), 200)]:
        a, b = operands(prompt)
        assert int(answer) == (a + b if "+" in prompt else a - b)


def test_training_never_meets_a_held_out_pair() -> None:
    kept = {frozenset(operands(prompt)) for prompt, _ in held_out(200)}
    drawn = {frozenset(operands(prompt)) for prompt, _ in islice(problems(0), 30_000)}
    assert not kept & drawn
    assert len(drawn) > 4000  # nearly all of the 4,5xx unordered training pairs turn up


def test_the_split_is_stable() -> None:
    assert held_out(3) == [("59+38=", "97"), ("80-65=", "15"), ("42+94=", "136")]
    assert held_out(200) == held_out(500)[:200]
    assert is_held_out(38, 59)
    assert not is_held_out(12, 30)


def test_held_out_signs_are_balanced_and_distinct() -> None:
    prompts = [prompt for prompt, _ in held_out(200)]
    assert len(set(prompts)) == 200
    assert sum("+" in prompt for prompt in prompts) == 100


def test_the_stream_depends_on_the_seed_alone() -> None:
    assert list(islice(problems(7), 50)) == list(islice(problems(7), 50))
    assert list(islice(problems(7), 50)) != list(islice(problems(8), 50))


def test_asking_for_more_than_exists_is_refused() -> None:
    with pytest.raises(ValueError, match="held-out problems exist"):
        held_out(10_000)
