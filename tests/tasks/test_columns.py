"""Columns of text: which of them a narrow screen goes without."""

from __future__ import annotations

import pytest

from flexinfer.tasks.columns import aligned, narrowed

ROWS = [["name", "best", "note", "p99"], ["a", "1", "-", "2"]]


@pytest.mark.parametrize(
    ("width", "out"),
    [
        (None, []),
        (21, []),
        (20, ["note"]),
        (15, ["note"]),
        (14, ["note", "best"]),
        (9, ["note", "best"]),
        (8, []),
    ],
)
def test_no_more_columns_are_left_out_than_it_takes(width: int | None, out: list[str]) -> None:
    kept, left_out = narrowed(ROWS, ["note", "nowhere", "best"], width)
    assert left_out == out
    assert kept[0] == [name for name in ROWS[0] if name not in out]
    assert [len(row) for row in kept] == [4 - len(out)] * 2
    if out:
        assert len(aligned(kept)[0]) <= (width or 0)
