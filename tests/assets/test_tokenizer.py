"""The byte tokenizer: nothing unknown, exact round trips, BOS in front, Gemma-4's turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import flexinfer.assets.tiny_gemma4 as package
from flexinfer.assets.tiny_gemma4.tokenizer import EOS_IDS, VOCAB_SIZE, build_tokenizer

FOLDER = Path(package.__file__).parent
STORED: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(FOLDER)


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("  two spaces, a dot . and\r\n\x00 tabs\t ")
@example("naïve 🎉 한국어 \u200d\ufffd")
@example("<|turn>user\n12+30=<turn|><bos><unk>")
def test_every_text_round_trips(text: str) -> None:
    ids = STORED.encode(text, add_special_tokens=False)
    assert STORED.decode(ids) == text
    assert all(0 <= token < VOCAB_SIZE for token in ids)
    if "<" not in text:
        assert len(ids) == len(text.encode())
        assert STORED.unk_token_id not in ids


def test_bos_comes_first_and_once() -> None:
    assert STORED.encode("a")[0] == STORED.bos_token_id == 2
    assert STORED.encode("a")[1:] == STORED.encode("a", add_special_tokens=False)
    assert STORED.encode("") == [2]


def test_special_ids_are_gemmas() -> None:
    assert (STORED.pad_token_id, STORED.eos_token_id, STORED.bos_token_id) == (0, 1, 2)
    assert STORED.convert_ids_to_tokens(EOS_IDS) == ["<eos>", "<turn|>", "<|tool_response>"]
    assert len(STORED) == VOCAB_SIZE == 272


def test_the_stored_files_are_what_the_script_builds() -> None:
    built = build_tokenizer()
    assert built.backend_tokenizer.to_str() == STORED.backend_tokenizer.to_str()
    assert built.chat_template == STORED.chat_template


def test_chat_template() -> None:
    messages = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": [{"type": "text", "text": "12+30="}]},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": "hi\n"},
    ]
    written = STORED.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert written == (
        "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\n12+30=<turn|>\n"
        "<|turn>model\n42<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n"
    )


def test_chat_template_refuses_an_unknown_role() -> None:
    with pytest.raises(Exception, match="unknown role narrator"):
        STORED.apply_chat_template([{"role": "narrator", "content": "so"}], tokenize=False)
