"""From messages or raw text to token ids: which chat template, and never a second BOS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flexinfer.config import ChatTemplate
from flexinfer.errors import RequestError, UsageError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORKING_START, WORKING_END = "<start_working_out>", "<end_working_out>"
SOLUTION_START, SOLUTION_END = "<SOLUTION>", "</SOLUTION>"
GRPO_SYSTEM = (
    "Solve the problem that follows. First work it out step by step between "
    f"{WORKING_START} and {WORKING_END}. Then give the answer alone between "
    f"{SOLUTION_START} and {SOLUTION_END}."
)
GRPO_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set turns = messages[1:] %}{% else %}"
    "{% set system = " + repr(GRPO_SYSTEM) + " %}{% set turns = messages %}{% endif %}"
    "{{ system }}{{ eos_token or '' }}"
    "{% for turn in turns %}{{ turn['content'] }}"
    "{% if turn['role'] == 'assistant' %}{{ eos_token or '' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + WORKING_START + "{% endif %}"
)
"""Jinja for apply_chat_template: system prompt, turns, then the first marker to go on from."""


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    family: str,
) -> tuple[int, ...]:
    """Return the ids of a conversation up to where the model goes on.

    `family` is the config's model_type: "auto" is the grpo template for Qwen3 and the tokenizer's
    own otherwise; under "none" a single user message is raw text. Raises UsageError where the
    tokenizer has no template, RequestError where the messages do not fit it.
    """
    check_messages(messages)
    if template == "none":
        return encode_raw(tokenizer, only_text(messages))
    grpo = template == "grpo" or (template == "auto" and family.startswith("qwen3"))
    if not grpo and not tokenizer.chat_template:
        raise UsageError(
            f"--chat-template {template}: the tokenizer has no chat template",
            hint="--chat-template none gives the prompt as raw text",
        )
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=GRPO_TEMPLATE if grpo else None,
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception as error:
        raise RequestError(f"the chat template refuses the messages: {one_line(error)}") from error
    # A tokenizer's own template writes its BOS itself; this one leaves it to the tokenizer.
    return _ids(tokenizer, text, special=grpo)


def encode_raw(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Return the ids of `text` with the BOS that the tokenizer adds, but never a second one.

    Raises RequestError for an empty text.
    """
    if not text:
        raise RequestError("the prompt is empty")
    ids = _ids(tokenizer, text, special=True)
    if tokenizer.bos_token and text.startswith(tokenizer.bos_token):
        plain = _ids(tokenizer, text, special=False)
        return plain if ids == (tokenizer.bos_token_id, *plain) else ids
    return ids


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise RequestError unless every message has a role and a content."""
    if isinstance(messages, str) or not messages:
        raise RequestError("messages is empty or no list")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise RequestError(f"message {number} has no role or no content")
        if not isinstance(message["role"], str) or not isinstance(message["content"], str):
            raise RequestError(f"message {number}: role and content must be strings")


def only_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a single user message; raises RequestError for anything else."""
    if len(messages) != 1 or messages[0]["role"] != "user":
        raise RequestError("--chat-template none takes a single user message")
    return str(messages[0]["content"])


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special: bool) -> tuple[int, ...]:
    """Tokenise; raises RequestError for what is no valid text."""
    try:
        return tuple(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
    except (TypeError, UnicodeError) as error:
        raise RequestError(f"the prompt is no valid text: {one_line(error)}") from error
