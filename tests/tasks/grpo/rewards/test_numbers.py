"""Numbers are read exactly, in the ways people write them, and nothing else is one."""

from __future__ import annotations

import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.tasks.grpo.rewards.numbers import LONGEST, first_number, last_number, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (" -7\n", -7),
        ("+7", 7),
        ("\u22127", -7),
        ("007", 7),
        ("1,234", 1234),
        ("-1,234,567.5", Fraction(-12345675, 10)),
        ("$5", 5),
        ("-$5", -5),
        ("$-5", -5),
        ("\\$1,000", 1000),
        ("€0.50", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-3 / 4", Fraction(-3, 4)),
        ("3.", 3),
        (".5", Fraction(1, 2)),
        ("1e3", 1000),
        ("3.e2", 300),
        ("2.5E-1", Fraction(1, 4)),
        ("0.1", Fraction(1, 10)),
        ("9" * 400, int("9" * 400)),
        ("1/" + "9" * 400, Fraction(1, int("9" * 400))),
    ],
)
def test_a_number_is_read(text: str, value: Fraction | int) -> None:
    assert read_number(text) == value
    assert first_number(f"it is {text.strip()} now") == value
    assert last_number(f"it is {text.strip()} now") == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "-", "$", ",", "abc", "nan", "inf", "-inf", "Infinity", "0x10", "1_000"),
        *("1,2345", "1,23", "1.2.3", "1/0", "0/00", "1/2/3", "1/2.5", "1e9999", "1e", "5%", "5 6"),
        *(
            "٣",
            "\uff11\uff12",
            "²",
            "½",
            "4\uff12",
            "1\x00",
            "9" * (LONGEST + 1),
            "1e999999999",
            "--5",
            "\ud800",
        ),
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("no digits at all", None, None),
        ("12-3=9", 12, 9),
        ("12 - 3 = -9", 12, -9),
        ("x-3", 3, 3),
        ("(2)-3", 2, 3),
        ("f = -3", -3, -3),
        ("from 1,234 to 1,2", 1234, 2),
        ("costs $-5.", -5, -5),
        ("1/0 or 4", 4, 4),
        ("step.5", 5, 5),
        ("1,2345", 1, 2345),
        ("1/2.5", 1, Fraction(5, 2)),
        ("1/25.5", 1, Fraction(51, 2)),
        ("1/23", Fraction(1, 23), Fraction(1, 23)),
        ("٣ then 4", 4, 4),
        ("9" * (LONGEST + 1) + " 5", 5, 5),
    ],
)
def test_numbers_are_found_in_a_text(
    text: str, first: Fraction | int | None, last: Fraction | int | None
) -> None:
    assert (first_number(text), last_number(text)) == (first, last)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
def test_every_decimal_is_read_as_it_is(value: Decimal) -> None:
    assert read_number(f"{value:f}") == Fraction(value)
    if value == value.to_integral():
        assert read_number(f"{int(value):,}") == int(value)


@given(st.text(), st.text(alphabet="0123456789,./-+$eE \u2212٣"))
def test_no_text_breaks_it(text: str, numeric: str) -> None:
    for hostile in (text, numeric):
        whole = read_number(hostile)
        assert whole is None or first_number(hostile.strip()) == whole
        assert (first_number(hostile) is None) == (last_number(hostile) is None)


@pytest.mark.parametrize("piece", ["1,111", "9", "1 / ", "$-", ".", "1e", "1,", "-", " ", "1/0 "])
def test_a_long_text_takes_no_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.perf_counter()
    first_number(text), last_number(text), read_number(text)
    assert time.perf_counter() - began < 3
