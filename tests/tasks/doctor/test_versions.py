"""Version texts of the wild, compared without a library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from flexinfer.tasks.doctor.facts.versions import bounds, older, release, within


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("4.0.0b36", (4, 0, 0)), ("5.6.0.dev0", (5, 6, 0)), ("?", ())],
)
def test_release(text, numbers):
    assert release(text) == numbers


@pytest.mark.parametrize(
    ("found", "minimum", "expected"),
    [
        ("5.5.1", (5, 5, 2), True),
        ("5.5.2", (5, 5, 2), False),
        ("5.10.0", (5, 5, 2), False),
        ("3", (3, 0), False),
        ("2.9.1+cu128", (2, 11), True),
        ("unknown version", (1,), False),
    ],
)
def test_older(found, minimum, expected):
    assert older(found, minimum) is expected


def test_bounds_come_from_the_line_of_that_package_alone():
    lines = ["transformers>=4.56.2", 'vllm<=0.31.0,>=0.22.0; extra == "vllm"', "trl-vllm==1"]
    assert bounds(lines, "vllm") == "<=0.31.0,>=0.22.0"
    assert bounds(['triton==3.6.0; platform_system == "Linux"'], "triton") == "==3.6.0"
    assert bounds(["vllm-extra>=1"], "vllm") is None
    assert bounds(["datasets"], "datasets") is None


numbers = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda n: ".".join(map(str, n)))
comparison = st.tuples(st.sampled_from([">=", "<=", ">", "<", "==", "!="]), numbers).map("".join)


@given(numbers, st.lists(comparison, min_size=1, max_size=3).map(",".join))
def test_within_agrees_with_packaging(found, asked):
    assert within(found, asked) == SpecifierSet(asked).contains(found)
