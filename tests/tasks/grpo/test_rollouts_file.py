"""Every completion is a line on disk once its step is done; resuming cuts back to that step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.grpo.records.rollouts_file import RolloutLine, RolloutsFile


def made(step: int, **changes: Any) -> RolloutLine:
    values: dict[str, Any] = {
        "step": step,
        "policy_version": step - 1,
        "prompt": [{"role": "user", "content": "1+1="}],
        "completion": "2\u2028é\ud83d",
        "token_ids": (5, 6),
        "logprobs": (-0.5, -0.25),
        "rewards": {"exact-answer": 1.0, "math-verify": None},
        "advantage": 0.75,
    }
    return RolloutLine(**values | changes)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_line_is_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with RolloutsFile(path) as file:
        file.write([made(1), made(1, advantage=math.nan, logprobs=None)])
        first, second = lines(path)
        file.write([made(2)])
        assert [line["step"] for line in lines(path)] == [1, 1, 2]
    assert first == {
        "step": 1, "policy_version": 0, "prompt": [{"role": "user", "content": "1+1="}],
        "completion": "2\u2028é\\ud83d", "token_ids": [5, 6], "logprobs": [-0.5, -0.25],
        "rewards": {"exact-answer": 1.0, "math-verify": None}, "advantage": 0.75,
    } | {"completion": first["completion"]}  # fmt: skip
    assert first["completion"].startswith("2\u2028é")
    assert (second["advantage"], second["logprobs"]) == (None, None)


def test_resuming_cuts_back_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with RolloutsFile(path) as file:
        for step in (1, 2, 3):
            file.write([made(step), made(step)])
    with path.open("a") as torn:
        torn.write('{"step": 4, "comp')
    with RolloutsFile(path, through=2) as file:
        assert [line["step"] for line in lines(path)] == [1, 1, 2, 2]
        file.write([made(3, advantage=0.0)])
    assert [line["advantage"] for line in lines(path)] == [0.75] * 4 + [0.0]


def test_a_new_run_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with RolloutsFile(path) as file:
        file.write([made(1)])
    path.write_text("no json\n" + path.read_text())
    with RolloutsFile(path):
        assert path.read_text() == ""
    with RolloutsFile(tmp_path / "other.jsonl", through=5):
        assert (tmp_path / "other.jsonl").read_text() == ""


def test_a_broken_line_is_named_and_nothing_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    text = made(1).to_json().encode("utf-8", "backslashreplace") + b"no json\n" + b'{"step": 2}\n'
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"--resume: line 2 of .*rollouts.jsonl is no completion"):
        RolloutsFile(path, through=1)
    assert path.read_bytes() == text


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    link = tmp_path / "rollouts.jsonl"
    link.symlink_to("/dev/full")
    file = RolloutsFile(link)
    with pytest.raises(WriteFailed, match=r"cannot write .*: No space left"):
        file.write([made(1)])
