"""exact-answer, length and math-verify, and what every built-in does with columns."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.rewards.choose import BUILTIN, choose_rewards
from flexinfer.tasks.grpo.rewards.symbolic import SECONDS


def score(name: str, text: Any, answer: object = None, tokens: int = 0) -> float | None:
    """What one reward gives one completion."""
    (reward,) = choose_rewards([name])
    columns = {"answer": [answer], "completion_ids": [[0] * tokens], "trainer_state": object()}
    (only,) = reward(prompts=["?"], completions=[text], **columns)
    assert only is None or isinstance(only, float)
    return only


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("42", "42", 1),
        (" 42\n", "42", 1),
        ("so it is 42.", "42", 1),
        ("41 + 1 = 42", "42", 1),
        ("42, not 41", "42", 0),
        ("12-3=9", "9", 1),
        ("12-3=9", "-9", 0),
        ("-7", "-7", 1),
        ("7", "-7", 0),
        ("$1,000.00", "1000", 1),
        ("1/2", "0.5", 1),
        ("1" * 400, "1" * 400, 1),
        ("1" * 399 + "2", "1" * 400, 0),
        ("٤٢", "42", 0),
        ("", "42", 0),
        ("no", "42", 0),
        ("blue", "blue", 1),
        ("it is blue", "blue", 0),
        ("7 <SOLUTION> 42 </SOLUTION> 9", "42", 1),
        ("42 <SOLUTION>41</SOLUTION> 42", "42", 0),
        ("42 <SOLUTION></SOLUTION>", "42", 0),
        ("7<SOLUTION>it is blue</SOLUTION>", "blue", 0),
        ("7<SOLUTION> blue</SOLUTION>", "blue", 1),
        ("42", 42, 1),
        ("42", None, None),
        ("", "", None),
    ],
)
def test_exact_answer(text: str, answer: object, expected: float | None) -> None:
    assert score("exact-answer", text, answer) == expected


def test_messages_count_for_what_the_assistant_says() -> None:
    tool = {"role": "tool", "content": "43"}
    said: list[dict[str, Any]] = [{"role": "assistant", "content": "4"}, tool]
    assert score("exact-answer", [*said, {"content": "2"}], "42") == 1
    assert score("exact-answer", [tool, {"role": "assistant", "content": None}], "43") == 0
    assert score("exact-answer", [], "43") == 0


def test_length_takes_a_point_for_a_thousand_tokens() -> None:
    assert [score("length", "x", tokens=n) for n in (0, 1, 1000, 2500)] == [0, -0.001, -1, -2.5]


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("0.5", "1/2", 1),
        (r"\frac{1}{2}", "0.5", 1),
        (r"so $\frac{2}{4}$ it is", r"\frac{1}{2}", 1),
        (r"<SOLUTION>\frac{1}{2}</SOLUTION> or 3", "1/2", 1),
        (r"0.5 <SOLUTION>0.25</SOLUTION>", "1/2", 0),
        (r"\boxed{x+1}", "$1+x$", 1),
        ("", "1", 0),
        ("no number", "1", 0),
        ("2", "1", 0),
        ("1", None, None),
        ("blue", "blue", None),
        ("the lube", "blue", None),
        (r"so $(1,2)$", "(1,2)", 1),
        ("<SOLUTION>(1, 2)</SOLUTION>", "(1,2)", 1),
        ("<SOLUTION>(2, 1)</SOLUTION>", "(1,2)", 0),
        ("<SOLUTION>1,000</SOLUTION>", "1000", 1),
        ("<SOLUTION>$1000$</SOLUTION>", "1,000", 1),
        ("<SOLUTION>50\\%</SOLUTION>", "50%", 1),
        (r"<SOLUTION>x = 3\sqrt{2}</SOLUTION>", r"\sqrt{18}", 1),
        (r"<SOLUTION>it is \boxed{3}</SOLUTION>", "3", 1),
        ("<SOLUTION>it is 3</SOLUTION>", "3", 1),
        (r"<SOLUTION>\[5\]</SOLUTION>", "5", 1),
        (r"\(x+1\)", r"\[1+x\]", 1),
        ("<SOLUTION>$5 or $6$</SOLUTION>", "6", 1),
        ("1e-3", "0.001", 1),
        ("x^2+1", "1+x^2", 1),
        ("x^2+2", "1+x^2", 0),
        ("12-3=9", "9", 1),
        ("12-3=9", "12", 0),
        ("<SOLUTION>-$5</SOLUTION>", "-5", 1),
        ("<SOLUTION>\u2212x</SOLUTION>", "-x", 1),
        ("<SOLUTION>lube</SOLUTION>", "$blue$", 0),
        ("9" * 400, "9" * 400, 1),
        ("9" * 399 + "8", "9" * 400, 0),
        ("(" * 5000, "1", 0),
        (r"$\sqrt{" * 200, "1", 0),
        ("\ud800", "1", 0),
        ("__import__('os').abort()", "1", 0),
    ],
)
def test_math_verify(text: str, answer: str | None, expected: float | None) -> None:
    pytest.importorskip("math_verify")
    assert score("math-verify", text, answer) == expected


def test_math_verify_gives_up_on_what_takes_for_ever() -> None:
    pytest.importorskip("math_verify")
    began = time.perf_counter()
    assert score("math-verify", "$9^{9^{9^{9}}}$", "1") == 0
    assert time.perf_counter() - began < 2 * SECONDS + 1


def test_math_verify_in_a_thread_of_its_own() -> None:
    pytest.importorskip("math_verify")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score, "math-verify", "x+1", "1+x").result() == 1


@pytest.mark.parametrize("name", ["answer", "numbers", "exact-answer"])
def test_a_missing_answer_column_is_named(name: str) -> None:
    (reward,) = choose_rewards([name])
    with pytest.raises(UsageError, match=f"--reward {name} needs a column 'answer'"):
        reward(prompts=["?"], completions=["42"], solution=["42"])


def test_length_without_token_ids_is_named() -> None:
    (reward,) = choose_rewards(["length"])
    with pytest.raises(UsageError, match="--reward length needs a column 'completion_ids'"):
        reward(prompts=["?"], completions=["42"])


@pytest.mark.parametrize("name", ["format-exact", "format-approximate", "length"])
def test_what_needs_no_answer_takes_none(name: str) -> None:
    assert score(name, "42", answer=None) is not None


def test_built_in_rewards_travel_to_another_process() -> None:
    for name, reward in BUILTIN.items():
        copy = pickle.loads(pickle.dumps(reward))
        assert copy.__name__ == name
        assert copy == reward


def test_a_column_of_another_length_is_a_defect() -> None:
    (reward,) = choose_rewards(["exact-answer"])
    with pytest.raises(ValueError, match="zip"):
        reward(prompts=["?"], completions=["42"], answer=["42", "43"])
