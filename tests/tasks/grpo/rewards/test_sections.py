"""Markers once, twice, nested, out of order, missing: what counts as the solution."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.engine.requests.chat import GRPO_TEMPLATE
from flexinfer.tasks.grpo.rewards.sections import MARKERS, exact_solution, solution

START = "<start_working_out>"
END, OPEN, CLOSE = "<end_working_out>", "<SOLUTION>", "</SOLUTION>"


def test_the_markers_are_those_of_the_template() -> None:
    assert MARKERS == (END, OPEN, CLOSE)
    assert GRPO_TEMPLATE.endswith("{% if add_generation_prompt %}" + START + "{% endif %}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"6*7{END}{OPEN}42{CLOSE}", "42"),
        (f"6*7{END}\nso\n{OPEN} 42\n{CLOSE}\n ", " 42\n"),
        (f"{END}{OPEN}42{CLOSE}", "42"),
        (f"\n{START}6*7{END}{OPEN}42{CLOSE}", "42"),
    ],
)
def test_the_exact_format(text: str, found: str) -> None:
    assert exact_solution(text) == found
    assert solution(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        f"6*7{END}",
        f"6*7{OPEN}42{CLOSE}",
        f"6*7{END}{OPEN}42",
        f"6*7{END}42{CLOSE}",
        f"6*7{END}{OPEN}{CLOSE}",
        f"6*7{END}{OPEN} \n{CLOSE}",
        f"6*7{END}{OPEN}42{CLOSE} indeed",
        f"6*7{END}{OPEN}42{CLOSE}\nindeed",
        f"{OPEN}42{CLOSE}6*7{END}",
        f"{OPEN}4{END}2{CLOSE}",
        f"6*7{END}{CLOSE}42{OPEN}",
        f"6*7{CLOSE}{END}{OPEN}42",
        f"6*7{OPEN}{END}42{CLOSE}",
        f"6*7{END}{OPEN}42{CLOSE}{OPEN}42{CLOSE}",
        f"6*7{END}{OPEN}{OPEN}42{CLOSE}{CLOSE}",
        f"6*7{END}{END}{OPEN}42{CLOSE}",
        f"6{START}7{END}{OPEN}42{CLOSE}",
        f"{START}{START}7{END}{OPEN}42{CLOSE}",
        f"6*7{END.upper()}{OPEN}42{CLOSE}",
    ],
)
def test_near_misses_of_the_exact_format(text: str) -> None:
    assert exact_solution(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("42", None),
        (f"42{CLOSE}", None),
        (f"so {OPEN}42", "42"),
        (f"so {OPEN}42{CLOSE} or {OPEN}43{CLOSE}", "42"),
        (f"{OPEN}{OPEN}42{CLOSE}{CLOSE}", f"{OPEN}42"),
    ],
)
def test_a_solution_in_any_format(text: str, found: str | None) -> None:
    assert solution(text) == found


parts = st.sampled_from([START, *MARKERS, "42", " ", "\n", "<"])


@given(st.lists(parts, max_size=8).map("".join))
def test_an_exact_solution_holds_no_marker_and_rebuilds_the_text(text: str) -> None:
    found = exact_solution(text)
    if found is not None:
        assert found.strip()
        assert not any(marker in found for marker in (START, *MARKERS))
        assert text.rstrip().endswith(OPEN + found + CLOSE)
        assert solution(text) == found


@pytest.mark.parametrize("piece", [END, OPEN, CLOSE, END + OPEN + CLOSE, END + OPEN + "4"])
def test_repeated_markers_take_no_time(piece: str) -> None:
    began = time.perf_counter()
    assert exact_solution(piece * 20_000) is None
    assert time.perf_counter() - began < 1
