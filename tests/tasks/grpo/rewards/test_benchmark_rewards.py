"""The four rewards of the GRPO benchmark: each value, and the range of their sum."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flexinfer.tasks.grpo.problems.hub import REWARDS
from flexinfer.tasks.grpo.rewards.choose import choose_rewards

END, OPEN, CLOSE = "<end_working_out>", "<SOLUTION>", "</SOLUTION>"


def say(solution: str) -> str:
    """A completion in the exact format."""
    return f"working{END}{OPEN}{solution}{CLOSE}"


def scores(text: str, answer: str | None) -> list[float | None]:
    """What the four rewards give one completion, as text and as messages alike."""
    rewards = choose_rewards(REWARDS)
    spoken = [{"role": "assistant", "content": text}]
    plain = [r(prompts=["?"], completions=[text], answer=[answer])[0] for r in rewards]
    chat = [r(prompts=[[]], completions=[spoken], answer=[answer])[0] for r in rewards]
    assert plain == chat
    return plain


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        (say("42"), "42", [3, 1.5, 5, 3.5]),
        (say(" 42\n"), "42", [3, 1.5, 3.5, 3.5]),
        (say("42.0"), "42", [3, 1.5, 2, 3.5]),
        (say("46"), "42", [3, 1.5, 2, -1.5]),
        (say("50"), "42", [3, 1.5, 1.5, -1.5]),
        (say("34"), "42", [3, 1.5, 1.5, -1.5]),
        (say("51"), "42", [3, 1.5, -2.5, -1.5]),
        (say("-42"), "42", [3, 1.5, -2.5, -1.5]),
        (say("110"), "100", [3, 1.5, 2, -1.5]),
        (say("90"), "100", [3, 1.5, 2, -1.5]),
        (say("120"), "100", [3, 1.5, 1.5, -1.5]),
        (say("80"), "100", [3, 1.5, 1.5, -1.5]),
        (say("79.999"), "100", [3, 1.5, -2.5, -1.5]),
        (say("-110"), "-100", [3, 1.5, 2, -1.5]),
        (say("forty-two"), "42", [3, 1.5, -4.5, -2.5]),
        (say("x = 42"), "42", [3, 1.5, -4.5, 3.5]),
        (say("$1,000"), "1000", [3, 1.5, 2, 3.5]),
        (say("1/2"), "0.5", [3, 1.5, 2, 3.5]),
        (say("1"), "0", [3, 1.5, -2.5, -1.5]),
        (say("0.0"), "0", [3, 1.5, 2, 3.5]),
        (say("٤٢"), "42", [3, 1.5, -4.5, -2.5]),
        (say("9" * 400), "9" * 399 + "8", [3, 1.5, 2, -1.5]),
        (say("9" * 400), "1", [3, 1.5, -2.5, -1.5]),
        (say("1e999999999"), "1", [3, 1.5, -4.5, 3.5]),
        (say("nan"), "nan", [3, 1.5, 5, None]),
        (say("nan"), "1", [3, 1.5, -4.5, -2.5]),
        (say(r"\frac{1}{2}"), r"\frac{1}{2}", [3, 1.5, 5, None]),
        (say("x+1"), "x", [3, 1.5, -4.5, None]),
        ("42", "42", [0, -3, -2, -2.5]),
        ("", "42", [0, -3, -2, -2.5]),
        (f"{OPEN}42", "42", [0, -1.5, -2, 3.5]),
        (f"{END}{OPEN}42{CLOSE} so", "42", [0, 1.5, -2, 3.5]),
        (f"{END}{OPEN}41{CLOSE}{OPEN}42{CLOSE}", "42", [0, -1.5, -2, -1.5]),
        (f"<start_working_out>{say('42')}", "42", [3, 1.5, 5, 3.5]),
    ],
)
def test_each_value(text: str, answer: str, expected: list[float | None]) -> None:
    assert scores(text, answer) == expected


@pytest.mark.parametrize("blank", [None, "", " \n"])
def test_without_an_answer_only_the_format_counts(blank: str | None) -> None:
    assert scores(say("42"), blank) == [3, 1.5, None, None]


pieces = st.sampled_from(
    [
        "<start_working_out>",
        END,
        OPEN,
        CLOSE,
        "42",
        "-1,000",
        "$3.",
        "1/0",
        " ",
        "x",
        "٣",
        "\n",
        "nan",
    ]
)
completions = st.one_of(
    st.text(), st.lists(pieces, max_size=9).map("".join), st.text(max_size=9).map(say)
)
answers = st.one_of(st.integers().map(str), st.floats().map(str), st.text(), st.just("42"))


@given(completions, answers)
@example("42", "42")
@example(say("42"), "42")
def test_the_sum_stays_in_its_range(text: str, answer: str) -> None:
    exact, approximate, right, number = scores(text, answer)
    assert exact in (0, 3)
    assert approximate in (-3, -1.5, 0, 1.5)
    assert right in (None, 5, 3.5, 2, 1.5, -2, -2.5, -4.5)
    assert number in (None, 3.5, -1.5, -2.5)
    assert -7.5 <= sum(s or 0 for s in (exact, approximate, right, number)) <= 13


def test_both_ends_of_the_range_are_reached() -> None:
    assert sum(s or 0 for s in scores("42", "42")) == -7.5
    assert sum(s or 0 for s in scores(say("42"), "42")) == 13
