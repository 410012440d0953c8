"""Files of the user: what is read, and what a bad line is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import EnvironmentUnfit, RequestError, UsageError, install_hint
from flexinfer.tasks.grpo.problems.choose import Problems, choose_problems
from flexinfer.tasks.grpo.problems.row import checked
from flexinfer.tasks.grpo.problems.table import as_dataset

Write = Callable[..., str]
CHAT = [{"role": "user", "content": "1+1"}]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write lines (objects, text or bytes) to a file, and return its name."""

    def written(*lines: Any, name: str = "p.jsonl") -> str:
        raw = [
            line
            if isinstance(line, bytes)
            else line.encode()
            if isinstance(line, str)
            else json.dumps(line).encode()
            for line in lines
        ]
        (tmp_path / name).write_bytes(b"\n".join(raw))
        return str(tmp_path / name)

    return written


def parquet(tmp_path: Path, columns: dict[str, Any]) -> str:
    """Write a table, and return the name of the file."""
    arrow = pytest.importorskip("pyarrow")
    path = str(tmp_path / "p.parquet")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
    return path


def read(name: str) -> Problems:
    return choose_problems(name, seed=0, count=1)


def test_prompts_with_answers_and_further_columns(write: Write) -> None:
    name = write(
        {"prompt": "1+1=", "answer": "2", "level": 1},
        "",
        {"prompt": "2+2=", "answer": 4, "hint": "even"},
        {"prompt": "3+3=", "answer": None},
    )
    problems = read(name)
    assert problems.rows == [
        {"prompt": "1+1=", "answer": "2", "level": 1, "hint": None},
        {"prompt": "2+2=", "answer": "4", "level": None, "hint": "even"},
        {"prompt": "3+3=", "answer": None, "level": None, "hint": None},
    ]
    assert problems.held_out == ()
    assert problems.rewards == ("exact-answer",)
    assert problems.notices == (f"problems: {name}, 3 rows",)


@pytest.mark.parametrize("key", ["messages", "prompt"])
def test_messages_become_the_prompt(write: Write, key: str) -> None:
    chat = [{"role": "system", "content": "Add."}, *CHAT]
    named = [{**CHAT[0], "name": None}]
    problems = read(write({key: chat, "answer": "2"}, {key: named, "answer": 3.5}))
    assert [row["prompt"] for row in problems.rows] == [chat, CHAT]
    assert [row["answer"] for row in problems.rows] == ["2", "3.5"]
    assert "messages" not in problems.rows[0]


def test_answers_may_be_left_out_of_all_rows(write: Write) -> None:
    rows = read(write({"prompt": "a"}, {"prompt": "b"})).rows
    assert rows == [{"prompt": "a", "answer": None}, {"prompt": "b", "answer": None}]


def test_a_mark_windows_line_ends_and_any_case_of_the_suffix(write: Write) -> None:
    name = write(b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "\xc3\xa9"}\r', name="P.JSONL")
    assert [row["prompt"] for row in read(name).rows] == ["a", "é"]


def test_an_answer_of_400_digits_stays_as_it_is(write: Write) -> None:
    digits = "9" * 400
    assert read(write('{"prompt": "a", "answer": ' + digits + "}")).rows[0]["answer"] == digits


GOOD = '{"prompt": "1+1=", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON: "),
        ("nothing", "not JSON: "),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        ("[1]", "not an object"),
        ("3", "not an object"),
        ("[" * 100_000, "not JSON: "),
        ('{"a":' * 900 + "1" + "}" * 900, "needs exactly one of prompt and messages"),
        ("{}", "needs exactly one of prompt and messages, has neither"),
        ('{"answer": "2"}', "needs exactly one of prompt and messages, has neither"),
        ({"prompt": None, "answer": "2"}, "has neither"),
        ({"prompt": "a", "messages": CHAT, "answer": "2"}, "has both"),
        ({"prompt": "", "answer": "2"}, "the prompt is empty"),
        ({"prompt": " \n", "answer": "2"}, "the prompt is empty"),
        ({"prompt": 3, "answer": "2"}, "prompt is neither text nor a list of messages"),
        ({"prompt": {"role": "user"}, "answer": "2"}, "prompt is neither text nor a list"),
        ({"prompt": [], "answer": "2"}, "messages is empty or no list"),
        ({"messages": "a", "answer": "2"}, "messages is not a list"),
        ({"messages": [], "answer": "2"}, "messages is empty or no list"),
        ({"messages": ["a"], "answer": "2"}, "message 1 has no role or no content"),
        ({"messages": [{"role": "user"}], "answer": "2"}, "message 1 has no role or no content"),
        (
            {"messages": [{"role": "user", "content": [1]}], "answer": "2"},
            "message 1: role and content must be strings",
        ),
        (
            {"messages": [{"role": "wizard", "content": "a"}], "answer": "2"},
            "message 1: the role is not one of system, user, assistant",
        ),
        (
            {"messages": [{**CHAT[0], "tool_calls": []}], "answer": "2"},
            "message 1 has 'tool_calls'; only role and content are used",
        ),
        (
            {"messages": [*CHAT, {"role": "assistant", "content": "2"}], "answer": "2"},
            "messages ends with the assistant, so nothing is left to answer",
        ),
        ({"prompt": CHAT, "answer": "2"}, "raw text here and messages there: line 1 is unlike it"),
        ({"prompt": "a"}, "answer is missing, which line 1 has"),
        ({"prompt": "a", "answer": ""}, "the answer is empty"),
        ({"prompt": "a", "answer": " \t"}, "the answer is empty"),
        ({"prompt": "a", "answer": True}, "answer is neither text nor a number"),
        ({"prompt": "a", "answer": ["2"]}, "answer is neither text nor a number"),
        ('{"prompt": "a", "answer": NaN}', "answer is not a finite number"),
        ('{"prompt": "a", "answer": 1e999}', "answer is not a finite number"),
        ('{"prompt": "a", "answer": ' + "9" * 5000 + "}", "not JSON: "),
        ('{"prompt": "\\ud800", "answer": "2"}', "not valid Unicode text"),
        ('{"prompt": "a", "answer": "2", "x": "\\ud800"}', "not valid Unicode text"),
        ('{"prompt": "a", "answer": "2", "\\ud800": 1}', "not valid Unicode text"),
        ({"prompt": "a", "answer": "2", "completions": 1}, "the column 'completions' means somet"),
        ({"prompt": "a", "answer": "2", "image": "x.png"}, "the column 'image' means something"),
    ],
)
def test_a_bad_line_is_named_by_its_number(write: Write, line: Any, said: str) -> None:
    name = write(GOOD, "", line)
    with pytest.raises(UsageError) as caught:
        read(name)
    assert caught.value.message.startswith(f"--dataset {name}, line 3: ")
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_the_first_line_without_an_answer_is_named_though_others_follow(write: Write) -> None:
    with pytest.raises(UsageError, match="line 1: answer is missing, which line 2 has"):
        read(write({"prompt": "a"}, {"prompt": "b", "answer": "1"}))


def test_a_column_nested_too_deeply() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        checked({"prompt": "a", "answer": "2", "x": deep})


@pytest.mark.parametrize("content", [b"", b"\n\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file(write: Write, content: bytes) -> None:
    with pytest.raises(UsageError, match="holds no problems"):
        read(write(content))


def test_no_file_or_a_folder(tmp_path: Path) -> None:
    for suffix in ("jsonl", "parquet"):
        with pytest.raises(UsageError, match="No such file"):
            read(str(tmp_path / f"none.{suffix}"))
        (tmp_path / f"folder.{suffix}").mkdir()
        with pytest.raises(UsageError, match="Is a directory"):
            read(str(tmp_path / f"folder.{suffix}"))


def test_parquet(tmp_path: Path) -> None:
    name = parquet(tmp_path, {"messages": [CHAT, CHAT], "answer": [2, None], "level": [0.5, 1.0]})
    assert read(name).rows == [
        {"prompt": CHAT, "answer": "2", "level": 0.5},
        {"prompt": CHAT, "answer": None, "level": 1.0},
    ]


def test_a_bad_row_of_parquet_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="row 2: needs exactly one of prompt and messages"):
        read(parquet(tmp_path, {"prompt": ["a", None], "answer": ["1", "2"]}))
    with pytest.raises(UsageError, match="row 1: answer is neither text nor a number"):
        read(parquet(tmp_path, {"prompt": ["a"], "answer": [b"1"]}))
    with pytest.raises(UsageError, match="holds no problems"):
        read(parquet(tmp_path, {"prompt": [], "answer": []}))


@pytest.mark.parametrize("content", [b"", b"PAR1", b'{"prompt": "a"}', bytes(range(256)) * 9])
def test_what_is_no_parquet(write: Write, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(UsageError, match="is no parquet file: ") as caught:
        read(write(content, name="p.parquet"))
    assert "\n" not in caught.value.message


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = parquet(tmp_path, {"prompt": ["a"], "answer": ["1"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(EnvironmentUnfit, match="needs pyarrow") as caught:
        read(name)
    assert caught.value.hint == install_hint("grpo")


NESTED: list[Any] = []
for _ in range(500):
    NESTED = [NESTED]


def test_rows_become_the_table_of_the_trainer(write: Write) -> None:
    pytest.importorskip("datasets")
    rows = read(write({"messages": CHAT, "answer": "2"}, {"messages": CHAT, "answer": "3", "x": 1}))
    table = as_dataset(rows.name, rows.rows)
    assert table.column_names == ["prompt", "answer", "x"]
    assert [*table] == [dict(row) for row in rows.rows]
    sums = choose_problems("arithmetic", seed=0, count=3).rows
    assert [*as_dataset("arithmetic", sums)] == [dict(row) for row in sums]


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, "a"), ([1], 2), ({"a": 1}, "b"), (2**70, 1), (NESTED, NESTED)],
    ids=["kinds", "list", "dict", "large", "nested"],
)
def test_a_column_of_several_kinds(write: Write, one: Any, other: Any) -> None:
    pytest.importorskip("datasets")
    rows = read(write({"prompt": "a", "x": one}, {"prompt": "b", "x": other})).rows
    with pytest.raises(UsageError, match="--dataset f: a column holds what a table cannot") as e:
        as_dataset("f", rows)
    assert "\n" not in e.value.message
