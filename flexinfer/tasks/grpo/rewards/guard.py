"""Rewards of a user under guard: what goes wrong in one is a single line that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, SupportsFloat

from flexinfer.errors import UsageError, one_line


@dataclass(frozen=True)
class Guarded:
    """A user's reward that raises UsageError where it fails or returns what is no reward."""

    name: str
    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        """What it is logged under."""
        return self.name

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Call it as TRL would, and check what it returns."""
        try:
            returned = self.function(prompts=prompts, completions=completions, **columns)
            return scores(self.name, returned, len(completions))
        except (Exception, SystemExit) as error:
            raise failed(self.name, error) from error


@dataclass(frozen=True)
class GuardedAsync:
    """The same for an `async def`, which TRL awaits beside the others."""

    name: str
    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        """What it is logged under."""
        return self.name

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Await it as TRL would, and check what it returns."""
        try:
            returned = await self.function(prompts=prompts, completions=completions, **columns)
            return scores(self.name, returned, len(completions))
        except (Exception, SystemExit) as error:
            raise failed(self.name, error) from error


def failed(name: str, error: BaseException) -> UsageError:
    """Return what to raise for an error in a reward; one that names it already stays."""
    if isinstance(error, _NoReward):
        return error
    kind = type(error).__name__
    said = one_line(error)
    return UsageError(
        f"--reward {name} raised {kind if said == kind else f'{kind}: {said}'}",
        hint="--debug shows where",
    )


class _NoReward(UsageError):
    """A reward returned something else than rewards."""


def scores(name: str, returned: Any, count: int) -> list[float | None]:
    """Return what reward `name` returned as `count` floats or None; raises UsageError."""
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes | Mapping):
        kind = type(returned).__name__
        raise _NoReward(f"--reward {name} returned {kind}, not a list of {count} rewards")
    listed = [*returned]
    if len(listed) != count:
        raise _NoReward(f"--reward {name} returned {len(listed)} rewards for {count} completions")
    return [_score(name, place, value) for place, value in enumerate(listed, start=1)]


def _score(name: str, place: int, value: Any) -> float | None:
    """Return one score; numbers of numpy and torch are numbers too."""
    if value is None:
        return None
    said = f"--reward {name} returned {value!r:.60} for completion {place}"
    if not isinstance(value, SupportsFloat):
        raise _NoReward(f"{said}, not a number or None")
    if not isfinite(score := float(value)):
        raise _NoReward(f"{said}, not a finite number or None")
    return score
