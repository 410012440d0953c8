"""What generate says before it starts of what its results will, or will not, be good for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.errors import UsageError

if TYPE_CHECKING:
    from flexinfer.tasks.generate.input import Item
    from flexinfer.tasks.generate.output import Format


def resumable(items: Sequence[Item], target: str, form: Format) -> bool:
    """Tell whether --resume could go on with what is written of `items` to `target`."""
    from flexinfer.tasks.generate.input import repeated_id

    return target != "-" and form == "jsonl" and repeated_id(items) is None


def remarks(items: Sequence[Item], target: str, form: Format, resume: bool) -> Iterator[str]:
    """Yield what to say of ids that repeat and of records that are replaced.

    Raises UsageError where `resume` is asked for and ids repeat.
    """
    from flexinfer.tasks.generate.input import repeated_id

    twice = repeated_id(items)
    if twice is not None and resume:
        raise UsageError(f"--resume: {twice}", hint="give each input line an id of its own")
    if twice is not None:
        written = target != "-" and form == "jsonl"
        lost = ", and --resume will not be possible" if written else ""
        yield f"warning: {twice}, so it does not tell results apart{lost}"
    if target != "-" and not resume:
        yield from _replaced(items, target, form)


def unshown(items: Sequence[Item], form: Format, *, as_json: bool, logprobs: bool) -> Iterator[str]:
    """Yield what to say of an input without requests and of log-probabilities nobody will see."""
    if not items:
        yield "no requests: the input has none"
    asked = logprobs or any(item.sampling.get("logprobs") for item in items)
    if asked and form == "text" and not as_json:
        yield "logprobs: not shown as text (--format jsonl or --json shows them)"


def _replaced(items: Sequence[Item], target: str, form: Format) -> Iterator[str]:
    """Say how many finished records a new run replaces, and whether they could be kept."""
    from flexinfer.tasks.generate.resume import finished_ids

    found = finished_ids(Path(target))
    if found:
        known = {item.id for item in items}
        keeps = resumable(items, target, form) and known.issuperset(found)
        count = f"{len(found)} record{'s' * (len(found) != 1)}"
        yield f"replacing {count} of {target}" + " (--resume keeps them)" * keeps
