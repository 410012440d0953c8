"""What a reward is about: one completion, its answer and its length; and TRL's way to ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flexinfer.errors import UsageError

Completion = str | Sequence[Mapping[str, Any]]
"""What was rolled out, as TRL gives it: text, or the messages that follow a conversation."""


class RewardFunc(Protocol):
    """A reward as TRL calls it: columns as keywords, a score (None: no opinion) a completion."""

    @property
    def __name__(self) -> str:
        """What it is logged under."""
        ...

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> Any:
        """Return a list of float or None, one a completion (or an awaitable of it)."""
        ...


@dataclass(frozen=True)
class Sample:
    """A completion: its text, the right `answer` where there is one, its length in tokens."""

    text: str
    answer: str | None = None
    tokens: int = 0


Judge = Callable[[Sample], float | None]


def text_of(completion: Completion) -> str:
    """Return the text of a completion; of messages, what the assistant says."""
    if isinstance(completion, str):
        return completion
    said = (m.get("content") for m in completion if m.get("role", "assistant") == "assistant")
    return "".join(content for content in said if isinstance(content, str))


@dataclass(frozen=True)
class Builtin:
    """A judge of single samples as a reward of TRL; picklable, as TRL wants it."""

    name: str
    judge: Judge
    needs_answer: bool = True
    needs_tokens: bool = False

    @property
    def __name__(self) -> str:
        """What it is logged under."""
        return self.name

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        answer: Sequence[object] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Judge each completion; raises UsageError where a column it needs is missing."""
        if self.needs_answer and answer is None:
            raise self._lacks("answer")
        if self.needs_tokens and completion_ids is None:
            raise self._lacks("completion_ids")
        answers = [None] * len(completions) if answer is None else answer
        ids = [()] * len(completions) if completion_ids is None else completion_ids
        given = zip(completions, answers, ids, strict=True)
        return [self._score(Sample(text_of(c), _text(a), len(i))) for c, a, i in given]

    def _score(self, sample: Sample) -> float | None:
        """Judge a sample; of one without the answer that is needed there is no opinion."""
        return None if self.needs_answer and sample.answer is None else self.judge(sample)

    def _lacks(self, column: str) -> UsageError:
        """Say which column is missing."""
        said = f"--reward {self.name} needs a column {column!r}, which the problems lack"
        return UsageError(said, hint="add it to the problems, or choose another --reward")


def _text(answer: object) -> str | None:
    """Return an answer as text; a blank one is none."""
    text = "" if answer is None else str(answer)
    return text if text.strip() else None
