"""`math-verify`: the answer in any spelling that is symbolically equal, by the math-verify library.

Its time limits need the main thread, where TRL asks for rewards; elsewhere there are none.
"""

from __future__ import annotations

import threading
from typing import Any

from flexinfer.tasks.grpo.extras import need
from flexinfer.tasks.grpo.rewards.sample import Sample
from flexinfer.tasks.grpo.rewards.sections import solution

NAME = "math-verify"
SECONDS = 5
"""For reading an expression, and again for comparing two."""


def require() -> None:
    """Raise EnvironmentUnfit where the library is missing."""
    _library()


def symbolically_equal(sample: Sample) -> float | None:
    """Return 1 where the solution (else the whole text) equals the answer, else 0.

    Where the answer itself cannot be read there is no opinion.
    """
    assert sample.answer is not None
    library = _library()
    limit = SECONDS if threading.current_thread() is threading.main_thread() else None
    right = _parse(library, sample.answer, limit)
    if not right:
        return None
    between = solution(sample.text)
    said = _parse(library, sample.text if between is None else between, limit)
    return float(bool(said) and library.verify(right, said, timeout_seconds=limit))


def _parse(library: Any, text: str, limit: int | None) -> list[Any]:
    """Read an expression; one in bare LaTeX is not recognised until it is set between dollars."""
    dollars = "\\" in text and "$" not in text and "\\boxed" not in text
    return list(library.parse(f"${text}$" if dollars else text, parsing_timeout=limit))


def _library() -> Any:
    """Import it."""
    return need("math_verify", f"--reward {NAME}", "math-verify[antlr4_13_2]")
