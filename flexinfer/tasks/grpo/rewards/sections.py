"""The parts of a completion between the markers of the grpo template.

The template ends the prompt with the first marker, `<start_working_out>`, so a completion goes on
after it; under a template that does not, a completion may begin with it. Either way it earns
nothing. All searches take linear time, whatever a completion repeats.
"""

from __future__ import annotations

from flexinfer.engine.requests.chat import SOLUTION_END, SOLUTION_START, WORKING_END, WORKING_START

MARKERS = (WORKING_END, SOLUTION_START, SOLUTION_END)
"""The markers that a completion has to bring."""


def exact_solution(text: str) -> str | None:
    """Return the solution, unstripped, of a completion in exactly the wanted format, else None.

    Working, its end, then the solution between its markers, not blank, and only blanks after it;
    every marker once.
    """
    body = text.strip().removeprefix(WORKING_START)
    if WORKING_START in body or any(body.count(marker) != 1 for marker in MARKERS):
        return None
    _, _, after_working = body.partition(WORKING_END)
    _, _, opened = after_working.partition(SOLUTION_START)
    solution, closed, rest = opened.partition(SOLUTION_END)
    return solution if closed and solution.strip() and not rest.strip() else None


def solution(text: str) -> str | None:
    """Return what follows the first solution marker, up to the closing one if any; else None."""
    _, opened, rest = text.partition(SOLUTION_START)
    return rest.partition(SOLUTION_END)[0] if opened else None
