"""How many held-out problems are scored: all, or the first so many."""

from __future__ import annotations

from dataclasses import replace

from flexinfer.tasks.grpo.problems.problem_set import Problems


def first_held_out(problems: Problems, wanted: int | None) -> Problems:
    """Keep the first `wanted` held-out problems, all where None; says where there are fewer."""
    if wanted is None:
        return problems
    short = shortfall(problems.name, len(problems.held_out), wanted)
    return replace(
        problems, held_out=problems.held_out[:wanted], notices=(*problems.notices, *short)
    )


def shortfall(name: str, found: int, wanted: int) -> tuple[str, ...]:
    """Say that the set `name` has fewer held-out problems than --eval-size wants, where it has."""
    if found >= wanted:
        return ()
    if not found:
        return (f"--eval-size {wanted}: no held-out problems of {name}, none is scored",)
    return (f"--eval-size {wanted}: only {found} held-out problems of {name}, all are scored",)
