"""`math-verify`: the answer in any spelling that is symbolically equal, by the math-verify library.

Its time limits need the main thread, where TRL asks for rewards; elsewhere there are none.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from flexinfer.tasks.grpo.extras import need
from flexinfer.tasks.grpo.rewards.numbers import read_number
from flexinfer.tasks.grpo.rewards.sample import Sample
from flexinfer.tasks.grpo.rewards.sections import solution

NAME = "math-verify"
SECONDS = 2
"""For reading an expression, and again for comparing two."""
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}(?:[A-Za-z]|\s)")
"""A word that is no LaTeX command; its letters would be multiplied as symbols."""
_MARKS = ("$", r"\[", r"\(", r"\boxed")
"""Where one stands, LaTeX begins."""


def require() -> None:
    """Raise EnvironmentUnfit where the library is missing."""
    _library()


def symbolically_equal(sample: Sample) -> float | None:
    """Return 1 where the solution (else the whole text) equals the answer, else 0.

    Where the answer itself cannot be read there is no opinion.
    """
    assert sample.answer is not None
    between = solution(sample.text)
    text = sample.text if between is None else between
    number = read_number(text)
    if number is not None and number == read_number(sample.answer):
        return 1.0
    library = _library()
    limit = SECONDS if threading.current_thread() is threading.main_thread() else None
    right = _parse(library, sample.answer, limit)
    if not right:
        return None
    said = _parse(library, text, limit)
    return float(bool(said) and library.verify(right, said, timeout_seconds=limit))


def _parse(library: Any, text: str, limit: int | None) -> Any:
    """Read a text that is one expression: as LaTeX all of it, unless it is prose or marks some."""
    some = _PROSE.search(text) or any(mark in text for mark in _MARKS)
    return library.parse(text if some else f"${text}$", parsing_timeout=limit)


def _library() -> Any:
    """Import it."""
    return need("math_verify", f"--reward {NAME}", "grpo")
