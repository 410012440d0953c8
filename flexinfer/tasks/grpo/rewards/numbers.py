"""Numbers as people write them: `-7`, `1,234.50`, `$5`, `3/4`, `1e-3`; exact, of any length.

Digits are 0 to 9 alone, and a minus may be the typographic one.
"""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST = 1000
"""Characters; what is longer is no number, so that no completion costs much to read."""
MINUS = ("-", "\u2212")
_NUMBER = re.compile(
    r"""
    (?P<sign>  (?<![\w)\].]) [-+\u2212] )?                  # after a digit it is an operator
    (?: \\?[$€£¥₹] (?P<inner>[-\u2212])? )?
    (?P<value> (?: [0-9]{1,3} (?:,[0-9]{3})+ (?![0-9]) | [0-9]+ ) (?:\.[0-9]*)?
             | (?<![\w.]) \.[0-9]+ )
    (?P<power> [eE] [-+]? [0-9]{1,3} (?![0-9]) )?
    (?: [ ]?/[ ]? (?P<below>[0-9]+) (?!\.?[0-9]) )?
    """,
    re.VERBOSE,
)


def read_number(text: str) -> Fraction | None:
    """Return the number that the whole text is, blanks around it aside, else None."""
    match = _NUMBER.fullmatch(text.strip())
    return None if match is None else _value(match)


def first_number(text: str) -> Fraction | None:
    """Return the first number in a text, None where there is none."""
    values = (_value(match) for match in _NUMBER.finditer(text))
    return next((value for value in values if value is not None), None)


def last_number(text: str) -> Fraction | None:
    """Return the last number in a text, None where there is none."""
    matches = reversed([*_NUMBER.finditer(text)])
    return next((value for match in matches if (value := _value(match)) is not None), None)


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a match; None over zero, or where it is too long."""
    below = match["below"] or "1"
    if len(match[0]) > LONGEST or not below.strip("0"):
        return None
    digits = match["value"].replace(",", "") + (match["power"] or "")
    size = Fraction(digits) / int(below)
    minus = [sign for sign in (match["sign"], match["inner"]) if sign in MINUS]
    return -size if len(minus) == 1 else size
