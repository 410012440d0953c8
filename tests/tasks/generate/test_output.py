"""Records leave in input order and survive what ends a run; a resumed run is the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.generate.heading import headings
from flexinfer.tasks.generate.input import Item
from flexinfer.tasks.generate.output import InOrder, as_line
from flexinfer.tasks.generate.records import Record
from flexinfer.tasks.generate.resume import check_same, in_order, read_finished


def record(name: str | int | None, text: str = "t", **more: Any) -> Record:
    return {"id": name, "prompt_token_ids": [1], "outputs": [{"text": text}], **more}


@given(st.permutations(range(6)), st.integers(0, 6))
def test_records_leave_in_order_and_none_is_lost(arrival: list[int], finished: int) -> None:
    out: list[Record] = []
    arrived = arrival[:finished]
    with InOrder(out.append) as ordered:
        for index in arrived:
            ordered.put(index, {"id": index})
            here = set(arrived[: arrived.index(index) + 1])
            ready = [n for n in range(6) if set(range(n + 1)) <= here]
            assert [r["id"] for r in out] == ready, "a record waits that could be written"
    assert [r["id"] for r in out] == sorted(arrived)


def test_a_place_without_a_record_holds_nobody_up() -> None:
    out: list[Record] = []
    with InOrder(out.append) as ordered:
        ordered.put(1, {"id": 1})
        ordered.put(0, None)
        assert out == [{"id": 1}]


def pass_on(emit: Callable[[Record], None], *arrival: int, error: BaseException | None) -> None:
    with InOrder(emit) as ordered:
        for index in arrival:
            ordered.put(index, {"id": index})
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt()])
def test_a_crash_passes_on_what_was_finished(error: BaseException) -> None:
    out: list[Record] = []
    with pytest.raises(type(error)):
        pass_on(out.append, 3, 2, error=error)
    assert out == [{"id": 2}, {"id": 3}]


@pytest.mark.parametrize("error", [WriteFailed("full"), BrokenPipeError()])
def test_a_failed_write_is_not_tried_again(error: Exception) -> None:
    tried: list[Record] = []

    def emit(one: Record) -> None:
        tried.append(one)
        raise error

    with pytest.raises(type(error)):
        pass_on(emit, 2, 0, error=None)
    assert tried == [{"id": 0}]


def test_text_lines_keep_the_place_of_a_failure() -> None:
    assert as_line({"outputs": [{"text": "a"}, {"text": "b"}]}, "text") == "a\nb\n"
    assert as_line({"outputs": [], "error": "e"}, "text") == "\n"
    assert as_line({"outputs": [], "error": "e"}, "text", alone=True) == ""
    assert as_line({"x": "é"}, "jsonl") == '{"x": "é"}\n'


def test_samples_are_told_apart_where_a_person_reads_them() -> None:
    several = {"outputs": [{"text": "a\nb"}, {"text": "c"}]}
    assert as_line(several, "text") == "a\nb\nc\n"
    told = "--- sample 1 of 2\na\nb\n--- sample 2 of 2\nc\n"
    assert as_line(several, "text", numbered=True) == told
    assert as_line({"outputs": [{"text": "a"}]}, "text", numbered=True) == "a\n"
    assert as_line({"outputs": []}, "text", numbered=True) == "\n"


def test_headings_tell_requests_apart() -> None:
    items = (
        Item(id=0, prompt="12+30=\n\x1b[2J next"),
        Item(
            id="a", messages=({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
        ),
        Item(id="twice", prompt="one"),
        Item(id="twice", prompt="two"),
        Item(id=7, prompt_token_ids=(1, 2)),
        Item(id=None, line=6, error="not JSON"),
        Item(id=8, prompt="x" * 100),
    )
    assert headings(items) == {
        0: "--- 0: 12+30= [2J next\n",
        "a": "--- a: u\n",
        "twice": "--- twice\n",
        7: "--- 7\n",
        None: "--- (no id)\n",
        8: f"--- 8: {'x' * 60} ...\n",
    }
    assert headings(items[:1]) == {}


def test_only_whole_records_without_error_count_as_finished(tmp_path: Path) -> None:
    path = tmp_path / "out"
    failed = {"id": 1, "prompt_token_ids": [], "outputs": [], "error": "e"}
    path.write_text(as_line(record(0), "jsonl") + as_line(failed, "jsonl") + '{"id": 2, "out')
    assert read_finished(path, [0, 1, 2]) == {0: record(0)}
    assert read_finished(tmp_path / "missing", [0]) == {}


@pytest.mark.parametrize(
    ("content", "ids", "said"),
    [
        ('{"id": 7, "outputs": []}\n', [0], "holds id 7"),
        ('{"name": 7}\n{"id": 0, "outputs": []}\n', [0], "line 1 of"),
        ('{"id": 0, "out\n{"id": 0, "outputs": []}\n', [0], "line 1 of"),
        ("[" * 100_000 + "\n", [0], "line 1 of"),
        ('{"id": true, "outputs": []}\n', [1], "line 1 of"),
        ("", ["a", "a"], "ids that differ"),
    ],
)
def test_a_file_of_another_run_is_refused(
    tmp_path: Path, content: str, ids: list[str | int], said: str
) -> None:
    path = tmp_path / "out"
    path.write_text(content)
    with pytest.raises(UsageError, match=said):
        read_finished(path, ids)


def test_only_a_plain_file_is_resumed() -> None:
    with pytest.raises(UsageError, match="plain file"):
        read_finished(Path("/dev/null"), [])


def test_a_record_of_other_options_is_refused() -> None:
    old = record("a", model="m", sampling={"seed": 1})
    check_same(old, {"prompt_token_ids": [1], "model": "m", "sampling": {"seed": 1}})
    for other in ({"prompt_token_ids": [2]}, {"model": "n"}, {"sampling": {"seed": 2}}):
        with pytest.raises(UsageError, match=f"'a' was made with another {next(iter(other))}"):
            check_same(old, other)


def test_records_whose_id_is_not_known_are_made_again_and_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "out"
    lost = [record(None, error=f"line {n}: not JSON") for n in (2, 4)]
    path.write_text("".join(as_line(r, "jsonl") for r in (record("a"), *lost)))
    order = ["a", None, "b", None]
    kept = read_finished(path, order)
    assert kept == {"a": record("a")}
    assert in_order([*kept.values(), lost[0], record("b"), lost[1]], order) == [
        record("a"),
        lost[0],
        record("b"),
        lost[1],
    ]


def test_a_failed_record_of_an_id_that_is_gone_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(as_line(record(3, error="line 4: not JSON"), "jsonl"))
    assert read_finished(path, ["mended"]) == {}
