"""Chat templates: which one runs, what it renders, and one BOS at most."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.config import ChatTemplate
from flexinfer.engine.requests.chat import (
    GRPO_SYSTEM,
    SOLUTION_END,
    SOLUTION_START,
    WORKING_END,
    WORKING_START,
    encode_chat,
    encode_raw,
)
from flexinfer.errors import RequestError, UsageError
from tests.weights.folders import byte_tokenizer

QUESTION = [{"role": "user", "content": "1+1?"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


def rendered(messages: Any, chosen: ChatTemplate, family: str = "llama", **options: Any) -> str:
    """Encode with a tokenizer of these options, then show the ids as text."""
    tokenizer = byte_tokenizer(**options)
    return tokenizer.decode(encode_chat(tokenizer, messages, chosen, family))


@pytest.mark.parametrize("template", ["auto", "native"])
def test_the_tokenizers_own_template_runs_by_default(template: ChatTemplate) -> None:
    assert rendered(QUESTION, template) == "<bos><turn>user:1+1?<eos><turn>model:"


def test_qwen3_gets_the_grpo_template_by_default_and_native_on_demand() -> None:
    assert rendered(QUESTION, "auto", "qwen3") == rendered(QUESTION, "grpo", "llama")
    assert rendered(QUESTION, "native", "qwen3") == rendered(QUESTION, "auto", "llama")


def test_grpo_explains_the_markers_and_ends_with_the_first() -> None:
    text = rendered(QUESTION, "grpo", add_bos=False)
    assert text == f"{GRPO_SYSTEM}<eos>1+1?{WORKING_START}"
    for marker in (WORKING_START, WORKING_END, SOLUTION_START, SOLUTION_END):
        assert GRPO_SYSTEM.count(marker) == 1


def test_grpo_takes_a_system_prompt_and_earlier_turns() -> None:
    text = rendered(TALK, "grpo", add_bos=False)
    assert text == f"Be brief.<eos>ab<eos>c{WORKING_START}"


def test_grpo_begins_as_the_tokenizer_begins() -> None:
    assert rendered(QUESTION, "grpo").startswith(f"<bos>{GRPO_SYSTEM}<eos>")


def test_grpo_needs_no_template_of_the_tokenizer() -> None:
    assert rendered(QUESTION, "grpo", template=None).endswith(WORKING_START)


@pytest.mark.parametrize("template", ["auto", "native"])
def test_a_tokenizer_without_template_is_refused_with_the_cure(template: ChatTemplate) -> None:
    with pytest.raises(UsageError, match=f"--chat-template {template}") as caught:
        rendered(QUESTION, template, template=None)
    assert "--chat-template none" in str(caught.value.hint)


def test_none_makes_one_user_message_raw_text() -> None:
    assert rendered(QUESTION, "none", template=None) == "<bos>1+1?"
    with pytest.raises(RequestError, match="single user message"):
        rendered(TALK, "none")


@pytest.mark.parametrize(
    "messages",
    [
        [], "hello", ["hello"], [{"role": "user"}], [{"content": "a"}],
        [{"role": "user", "content": 3}], [{"role": "user", "content": None}],
        [{"role": None, "content": "a"}],
    ],
)  # fmt: skip
@pytest.mark.parametrize("template", ["auto", "grpo", "none"])
def test_messages_of_another_form_are_one_requests_error(
    messages: Any, template: ChatTemplate
) -> None:
    with pytest.raises(RequestError):
        rendered(messages, template)


def test_what_the_template_refuses_is_one_requests_error() -> None:
    refusing = "{{ raise_exception('roles must\nalternate') }}"
    with pytest.raises(RequestError, match="roles must alternate"):
        rendered(QUESTION, "native", template=refusing)


def test_raw_text_gets_the_bos_of_the_tokenizer_once() -> None:
    tokenizer = byte_tokenizer()
    plain = tuple(tokenizer("hi", add_special_tokens=False)["input_ids"])
    assert encode_raw(tokenizer, "hi") == (1, *plain)
    assert encode_raw(tokenizer, "<bos>hi") == (1, *plain)
    assert encode_raw(tokenizer, "<bos><bos>hi") == (1, 1, *plain)
    assert encode_raw(tokenizer, "<bos>") == (1,)


def test_a_tokenizer_that_adds_no_bos_adds_none() -> None:
    tokenizer = byte_tokenizer(add_bos=False)
    plain = tuple(tokenizer("hi")["input_ids"])
    assert encode_raw(tokenizer, "hi") == plain
    assert encode_raw(tokenizer, "<bos>hi") == (1, *plain)
    assert encode_raw(tokenizer, "<bos><bos>hi") == (1, 1, *plain)


@pytest.mark.parametrize("text", ["", "\ud800"])
def test_no_text_is_one_requests_error(text: str) -> None:
    with pytest.raises(RequestError):
        encode_raw(byte_tokenizer(), text)


def test_a_long_prompt_says_nothing_on_stderr(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = 4
    assert len(encode_raw(tokenizer, "a long prompt")) > 4
    encode_chat(tokenizer, QUESTION, "auto", "llama")
    assert not caplog.messages
