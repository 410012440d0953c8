"""A growing text: whole characters, no stop string, and in the end exactly the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.tasks.generate.text import HALF, TextStream
from tests.support.fake_engine import EOS, ByteTokenizer


def play(tokens: list[int], final: str) -> list[str]:
    pieces: list[str] = []
    stream = TextStream(ByteTokenizer(), (), {EOS}, pieces.append)
    for token in tokens:
        stream.add(token)
    stream.finish(final)
    return pieces


@given(st.text(max_size=40))
def test_pieces_add_up_and_never_break_a_character(text: str) -> None:
    text = text.replace(HALF, "")
    pieces = play([*text.encode(), EOS], text)
    assert "".join(pieces) == text
    assert not any(HALF in piece for piece in pieces)


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=2))
def test_a_stop_string_is_never_shown(text: str, stops: list[str]) -> None:
    end = min((text.index(s) + len(s) for s in stops if s in text), default=len(text))
    sampled = text[:end]
    shown = sampled[: min((sampled.index(s) for s in stops if s in sampled), default=end)]
    pieces: list[str] = []
    stream = TextStream(ByteTokenizer(), stops, {EOS}, pieces.append)
    for token in sampled.encode():
        stream.add(token)
        assert shown.startswith("".join(pieces)), "a part of a stop string was shown"
    stream.finish(shown)
    assert "".join(pieces) == shown


def test_text_is_shown_at_once_where_nothing_must_wait() -> None:
    pieces: list[str] = []
    stream = TextStream(ByteTokenizer(), ("###",), {EOS}, pieces.append)
    for token in "aé#b".encode():
        stream.add(token)
    assert pieces == ["a", "é", "#b"]


class Spaced:
    """Decodes a token to a word; the first word has no space before it, as in SentencePiece."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(f"w{token}" for token in token_ids)


def test_a_token_is_decoded_beside_its_left_neighbour() -> None:
    pieces: list[str] = []
    stream = TextStream(Spaced(), (), (), pieces.append)
    for token in (1, 2, 3, 4):
        stream.add(token)
    assert pieces == ["w1", " w2", " w3", " w4"]


def test_a_text_that_turns_out_otherwise_is_shown_whole() -> None:
    assert play(list(b"ab"), "xy") == ["a", "b", "\nxy"]


@pytest.mark.parametrize("text", ["", "é"])
def test_a_cut_character_is_shown_as_the_text_has_it(text: str) -> None:
    tokens = [*text.encode(), 0xE2, 0x82]
    final = ByteTokenizer().decode(tokens, skip_special_tokens=True)
    assert "".join(play(tokens, final)) == final
