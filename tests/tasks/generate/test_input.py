"""Lines and prompts become items; what is wrong with one becomes its error, at its place."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from flexinfer.errors import RequestError, UsageError
from flexinfer.tasks.generate.input import (
    Item,
    items_from_file,
    items_from_lines,
    items_from_prompts,
)
from flexinfer.tasks.generate.line import content


def one(record: Any, system: str | None = None) -> Item:
    line = record if isinstance(record, bytes) else json.dumps(record).encode()
    (item,) = items_from_lines([line], system)
    return item


def test_the_three_forms_of_a_prompt() -> None:
    message = {"role": "user", "content": "hi"}
    assert one({"prompt": "a"}) == Item(id=0, line=1, prompt="a")
    assert one({"messages": [message]}) == Item(id=0, line=1, messages=(message,))
    assert one({"prompt_token_ids": [0, 7]}) == Item(id=0, line=1, prompt_token_ids=(0, 7))


def test_ids_are_given_or_the_position_among_lines_that_are_not_blank() -> None:
    lines = [b'\xef\xbb\xbf{"prompt": "a"}\n', b"\n", b'{"prompt": "b", "id": "x"}', b"  ", b"{"]
    items = items_from_lines(lines)
    assert [item.id for item in items[:2]] == [0, "x"]
    assert items[0].prompt == "a", "a byte order mark is part of the line"
    assert items[2].error is not None
    assert items[2].error.startswith("not JSON")
    assert [item.line for item in items] == [1, 3, 5]


def test_sampling_keys_of_a_line() -> None:
    given = {"temperature": 1, "top_k": 5, "stop": "x", "ignore_eos": False, "n": 2, "seed": 3}
    item = one({"prompt": "a", "min_p": None, **given})
    assert item.sampling == given | {"stop": ("x",)}
    assert one({"prompt": "a", "stop": ["x", "y"]}).sampling == {"stop": ("x", "y")}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"{broken", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'"text"', "not a JSON object"),
        (b'{"prompt": "\\ud800"}', "not valid Unicode"),
        ({}, "exactly one of prompt, messages, prompt_token_ids, has 0"),
        ({"prompt": "a", "messages": []}, "has 2"),
        ({"prompt": None}, "has 0"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": 5}, "prompt is not a string"),
        ({"messages": []}, "at least one message"),
        ({"messages": ["hi"]}, "message 1 has no role or no content"),
        ({"messages": [{"role": "user"}]}, "message 1 has no role or no content"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"prompt_token_ids": [1, -1]}, "integers, 0 or more"),
        ({"prompt_token_ids": [1, True]}, "integers, 0 or more"),
        ({"prompt_token_ids": "12"}, "integers, 0 or more"),
        ({"prompt": "a", "temprature": 1}, "did you mean temperature?"),
        ({"prompt": "a", "qqq": 1}, "known: id, prompt"),
        ({"prompt": "a", "id": 1.5}, "id is neither"),
        ({"prompt": "a", "id": True}, "id is neither"),
        ({"prompt": "a", "temperature": "hot"}, "temperature is not a number"),
        ({"prompt": "a", "temperature": True}, "temperature is not a number"),
        ({"prompt": "a", "top_k": 1.5}, "top_k is not an integer"),
        ({"prompt": "a", "seed": "1"}, "seed is not an integer"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos is not true or false"),
        ({"prompt": "a", "stop": [1]}, "stop is not a string or a list of strings"),
    ],
)
def test_what_is_wrong_with_a_line(record: Any, said: str) -> None:
    item = one(record)
    assert item.error is not None
    assert item.line == 1
    assert said in item.error
    assert "\n" not in item.error


def test_a_broken_line_keeps_its_own_id() -> None:
    assert one({"id": "mine", "prompt": "a", "nonsense": 1}).id == "mine"


def test_the_system_message_goes_before_messages_that_bring_none() -> None:
    user, own = {"role": "user", "content": "hi"}, {"role": "system", "content": "own"}
    given = {"role": "system", "content": "given"}
    assert one({"messages": [user]}, "given").messages == (given, user)
    assert one({"messages": [own, user]}, "given").messages == (own, user)
    assert one({"prompt": "raw"}, "given").prompt == "raw"


def test_positional_prompts_are_user_messages_or_raw() -> None:
    chat = items_from_prompts(["a", ""], raw=False, system="s")
    assert chat[0].messages == (
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
    )
    assert chat[1] == Item(id=1, error="the prompt is empty")
    assert items_from_prompts(["a"], raw=True) == (Item(id=0, prompt="a"),)
    with pytest.raises(UsageError, match="--system"):
        items_from_prompts(["a"], raw=True, system="s")


def test_a_file_that_cannot_be_read(tmp_path: Any) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="--input"):
            items_from_file(str(path), io.BytesIO())


def test_a_dash_is_stdin() -> None:
    (item,) = items_from_file("-", io.BytesIO(b'{"prompt": "a"}\n'))
    assert item == Item(id=0, line=1, prompt="a")


def ids(*lines: bytes) -> list[str | int | None]:
    return [item.id for item in items_from_lines(lines)]


def test_an_id_is_kept_wherever_it_can_be_read() -> None:
    for line in (b'{"id": 5, "prompt": "\\ud800"}', b'{"id": 5, "prompt": "\xff"}'):
        (item,) = items_from_lines([line])
        assert (item.id, item.line) == (5, 1)
        assert item.error is not None
    assert one(b'{"id": 5, "prompt": "\xff"}').error == "not UTF-8"


def test_a_line_that_cannot_be_read_never_takes_the_id_of_another() -> None:
    broken = [b"{", b'{"id": "\\ud800", "prompt": "a"}', b'{"id": 1.5, "prompt": "a"}', b"\xff"]
    for line in broken:
        assert ids(b'{"id": 1, "prompt": "a"}', line) == [1, None]
        assert ids(b'{"prompt": "a"}', line) == [0, 1], (
            "positions are ids where no line has its own"
        )


@pytest.mark.parametrize("given", [(["\udcff"], None), (["a"], "\udcff")])
def test_half_a_surrogate_pair_on_the_command_line_is_wrong_usage(given: Any) -> None:
    prompts, system = given
    with pytest.raises(UsageError, match="not valid Unicode"):
        items_from_prompts(prompts, raw=False, system=system)


def test_a_system_message_for_lines_is_checked_too() -> None:
    with pytest.raises(UsageError, match="--system is not valid Unicode"):
        items_from_lines([], "\udcff")


def test_a_closed_stdin_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="--input -: standard input is closed"):
        items_from_file("-", None)


def test_deep_nesting_is_a_lines_error() -> None:
    deep: Any = "a"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        content({"prompt": deep}, b"\\u")
