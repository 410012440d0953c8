"""What is said where the longest sequence leaves less room than a request may have new tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flexinfer.tasks.generate.requests import GenerateConfig, Plan


@dataclass(frozen=True, kw_only=True)
class Short:
    """A request, by its id, with `room` for fewer new tokens than the `allowed` ones.

    `asked` tells whether somebody asked for that many, by option or line; else it is a default.
    """

    id: str | int | None
    room: int
    allowed: int
    asked: bool


@dataclass(frozen=True, kw_only=True)
class Room:
    """The requests that are short of room, by position, and what bounds them."""

    bound: str
    short: dict[int, Short]

    def before(self) -> tuple[str, ...]:
        """Return what is to be said before anything runs: that what was asked for has no room."""
        cut = [one for one in self.short.values() if one.asked]
        if not cut:
            return ()
        least = min(cut, key=lambda one: one.room)
        if len(cut) == 1:
            of = f"{least.room} of the {least.allowed} new tokens asked (request {least.id!r})"
            return (f"{self.bound} leaves room for {of}",)
        words = f"leaves {len(cut)} requests less room than the new tokens asked"
        return (f"{self.bound} {words}, {_least(least, 'least')} {least.allowed}",)

    def after(self, ended: Collection[int]) -> tuple[str, ...]:
        """Return what is to be said once the requests at the positions `ended` ran out of room."""
        cut = [one for place, one in self.short.items() if place in ended and not one.asked]
        if not cut:
            return ()
        least = min(cut, key=lambda one: one.room)
        until = f"up to {least.allowed} new tokens"
        if len(cut) == 1:
            return (f"{self.bound} ended request {least.id!r} early: {least.room} of {until}",)
        words = f"ended {len(cut)} requests early"
        return (f"{self.bound} {words}, {_least(least, 'earliest')} {until}",)


def room_of(config: GenerateConfig, plan: Plan, longest: int | None, model: str) -> Room:
    """Find the requests of `plan` short of room in `longest` tokens, by option or by the `model`.

    None is for a plan without requests. A prompt without room for one new token is not among them:
    the engine refuses it.
    """
    given = config.engine.max_seq_length
    bound = f"the longest sequence of {model} ({longest} tokens)"
    short: dict[int, Short] = {}
    for place, request in plan.requests.items():
        assert longest is not None
        item, allowed = config.items[place], request.sampling.max_new_tokens
        room = longest - len(request.prompt_token_ids)
        if 0 < room < allowed:
            values = {**config.sampling, **item.sampling}
            asked = values.get("max_new_tokens") is not None
            short[place] = Short(id=item.id, room=room, allowed=allowed, asked=asked)
    return Room(bound=bound if given is None else f"--max-seq-length {given}", short=short)


def _least(least: Short, word: str) -> str:
    """Name the request that fares worst, and how far it gets, of what the caller adds."""
    return f"request {least.id!r} the {word}: {least.room} of"
