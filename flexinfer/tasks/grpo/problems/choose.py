"""What `--dataset` may say: the name of a set, or a file."""

from __future__ import annotations

import difflib
from pathlib import Path

from flexinfer.errors import OutOfRange, UsageError
from flexinfer.tasks.grpo.problems import arithmetic
from flexinfer.tasks.grpo.problems.files import READERS, from_file
from flexinfer.tasks.grpo.problems.hub import HUB_SETS, from_hub
from flexinfer.tasks.grpo.problems.length import within_length
from flexinfer.tasks.grpo.problems.problem_set import Problems

__all__ = ["NAMES", "Problems", "choose_problems", "within_length"]

NAMES = (arithmetic.NAME, *HUB_SETS)


def choose_problems(name: str, *, seed: int, count: int | None = None) -> Problems:
    """Return the problems that `name` means, whatever its case.

    `arithmetic`, which has no end, gives `count` sums drawn by `seed`; other sets give all of their
    rows in their own order. Raises UsageError for an unknown name or a bad file, EnvironmentUnfit
    where a set cannot be had here.
    """
    if count is not None and count < 1:
        raise OutOfRange("count", count, "1 or more problems")
    if name.lower() == arithmetic.NAME:
        return arithmetic.arithmetic(seed, count)
    if name.lower() in HUB_SETS:
        return from_hub(name.lower())
    if Path(name).suffix.lower() in READERS:
        return from_file(name)
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    """Say of a name that means nothing what is near it."""
    kinds = " and ".join(f"FILE{suffix}" for suffix in READERS)
    if name and Path(name).exists():
        return UsageError(f"--dataset {name}: its kind is not read", hint=f"give {kinds}")
    near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.5)
    known = f"known: {', '.join(NAMES)}, {kinds}"
    return UsageError(
        f"--dataset {name!r} is unknown", hint=f"did you mean {near[0]}? {known}" if near else known
    )
