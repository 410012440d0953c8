"""One row of a user's file: its prompt, its answer, and the columns that rewards are given.

Whatever is wrong with it is a RequestError that says so on one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any

from flexinfer.engine.requests.chat import check_messages
from flexinfer.errors import RequestError
from flexinfer.tasks.grpo.problems.problem_set import Message, Prompt, Row

RESERVED = frozenset(
    {
        *("prompts", "completions", "completion_ids", "completion", "chosen", "rejected"),
        *("image", "images", "environment", "environments"),
        *("policy_version", "trainer_state", "log_extra", "log_metric"),
    }
)
"""Columns that TRL gives a meaning of its own, or arguments it passes to every reward."""
ROLES = ("system", "user", "assistant")


def checked(record: Mapping[str, Any]) -> Row:
    """Return a record as a row; `answer` is there only where the record brings that key."""
    _check_text(record)
    if taken := sorted(RESERVED & set(record)):
        raise RequestError(f"the column {taken[0]!r} means something to the trainer; rename it")
    given = [key for key in ("prompt", "messages") if record.get(key) is not None]
    if len(given) != 1:
        has = "both" if given else "neither"
        raise RequestError(f"needs exactly one of prompt and messages, has {has}")
    row: dict[str, Any] = {"prompt": _prompt(given[0], record[given[0]])}
    if "answer" in record:
        row["answer"] = _answer(record["answer"])
    return row | {k: v for k, v in record.items() if k not in ("prompt", "messages", "answer")}


def _prompt(key: str, value: Any) -> Prompt:
    """Check a prompt: text, or messages under either key."""
    if isinstance(value, str) and key == "prompt":
        if not value.strip():
            raise RequestError("the prompt is empty")
        return value
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        kinds = "neither text nor a list of messages" if key == "prompt" else "not a list"
        raise RequestError(f"{key} is {kinds}")
    check_messages(value)
    if value[-1]["role"] == "assistant":
        raise RequestError(f"{key} ends with the assistant, so nothing is left to answer")
    return [_message(number, message) for number, message in enumerate(value, 1)]


def _message(number: int, message: Mapping[str, Any]) -> Message:
    """Return role and content; anything else that is set cannot be rolled out."""
    if message["role"] not in ROLES:
        raise RequestError(f"message {number}: the role is not one of {', '.join(ROLES)}")
    for key, value in message.items():
        if key not in ("role", "content") and value is not None:
            raise RequestError(f"message {number} has {key!r}; only role and content are used")
    return {"role": message["role"], "content": message["content"]}


def _answer(value: Any) -> str | None:
    """Return an answer as text; a number becomes its digits, null stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise RequestError("answer is neither text nor a number")
    if not isinstance(value, str | int) and not isfinite(value):
        raise RequestError("answer is not a finite number")
    if not str(value).strip():
        raise RequestError("the answer is empty")
    return str(value)


def _check_text(record: Mapping[str, Any]) -> None:
    """Refuse half a surrogate pair, which no tokenizer and no table can take."""
    try:
        json.dumps(record, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("not valid Unicode text") from error
    except RecursionError as error:
        raise RequestError("nested too deeply") from error
