"""What goes into the engine and what comes out: plain frozen records, no torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flexinfer.config import SamplingParams
from flexinfer.errors import UsageError


class Text:
    """A field that takes a text, or what makes it, and is always read as a text.

    Detokenising a round of rollouts costs as much as dozens of decode steps, and a trainer reads
    token ids: so it waits until somebody reads the text, and then happens once.
    """

    def __get__(self, owner: object | None, kind: type) -> str:
        """Return the text of `owner`; the class itself has none, so the field has no default."""
        if owner is None:
            raise AttributeError("text")
        held: str | Callable[[], str] = vars(owner)["text"]
        if not isinstance(held, str):
            held = vars(owner)["text"] = held()
        return held

    def __set__(self, owner: object, value: str | Callable[[], str]) -> None:
        """Take the text, or what makes it."""
        vars(owner)["text"] = value


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt, as token ids, and how to sample it."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        """Keep any sequence of whole numbers as a tuple; raises UsageError for anything else."""
        try:
            ids = tuple(map(operator.index, self.prompt_token_ids))
        except TypeError as error:
            kind = type(self.prompt_token_ids).__name__
            raise UsageError(
                f"prompt_token_ids is no sequence of token ids (it is a {kind})",
                hint="the engine's tokenizer makes them: engine.tokenizer.encode(text)",
            ) from error
        object.__setattr__(self, "prompt_token_ids", ids)


def checked(requests: Iterable[Request]) -> tuple[Request, ...]:
    """Return the requests of a call; raises UsageError where one is no Request."""
    held = tuple(requests)
    for number, request in enumerate(held):
        if not isinstance(request, Request):
            raise UsageError(
                f"requests[{number}] is no Request (it is a {type(request).__name__})",
                hint="write Request(prompt_token_ids=..., sampling=SamplingParams(...))",
            )
    return held


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One sample of one prompt.

    `token_ids` ends with the EOS where one was sampled; `text` holds neither EOS nor stop string.
    `logprobs` are of the distribution that was sampled from (after penalty, temperature and
    truncation), `policy_logprobs` of the temperature-scaled full vocabulary; natural logarithm, one
    per token. At temperature 0 both are of the unscaled distribution.
    `finish_reason` is "stop" or "length"; `stop` is the stop string or EOS id that ended it.
    `text` is decoded when it is first read, compared or pickled.
    """

    text: Text = Text()
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_logprobs: tuple[float, ...]
    finish_reason: str
    stop: str | int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for copies and pickles, the text among them as a text."""
        return vars(self) | {"text": self.text}


@dataclass(frozen=True, kw_only=True)
class RequestOutput:
    """All samples of request number `index` of the call, or the one-line `error` instead."""

    index: int
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...] = ()
    error: str | None = None


@dataclass(kw_only=True)
class EngineStats:
    """Counters since the engine was built; times in seconds of host wall clock."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    graph_replays: int = 0
    eager_steps: int = 0
    preemptions: int = 0
    load_s: float = 0.0
    compile_s: float = 0.0
    capture_s: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    refresh_s: list[float] = field(default_factory=list)
