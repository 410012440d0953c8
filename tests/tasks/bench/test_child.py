"""A lane in a process of its own: what it says arrives, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig
from flexinfer.tasks.bench.lanes import child
from flexinfer.tasks.bench.lanes.child import ENVIRONMENT, NOTICE, PROGRESS, ROW, Send, child_rows
from flexinfer.tasks.bench.lanes.lanes import Lane, lanes_of
from flexinfer.tasks.bench.measure.progress import Once
from flexinfer.tasks.bench.measure.rows import Listener
from flexinfer.tasks.bench.result import BenchResult
from tests.support.fake_backend import OPTIONS, fake_rig, small


def lane(*sizes: int) -> Lane:
    """A lane of that many rows."""
    return lanes_of(OPTIONS, EngineConfig(), small(batch_sizes=sizes), fake_rig()[0])[0]


def rows_of(
    work: Callable[[Lane, Send], None], of: Lane, environment: Callable[[Any], None] = print
) -> tuple[list[BenchResult], list[str], list[str]]:
    """Run `work` in a child; return its rows, the notices and the stages that were told."""
    said: list[str] = []
    stages: list[str] = []
    listener = Listener(report=lambda stage, *_: stages.append(stage), notice=Once(said.append))
    return list(child_rows(of, listener, environment, work)), said, stages


def speak(of: Lane, send: Send) -> None:
    """Say everything that a child can say, and write to stdout as libraries do."""
    print("a library speaks")
    os.write(1, b"and so does its C\n")
    send((ENVIRONMENT, {"device": str(os.getpid())}))
    send((NOTICE, "attention: fake"))
    send((PROGRESS, ("round 1", 0, 0)))
    for blank in of.blanks:
        send((ROW, replace(blank, decode_tps_median=float(os.getpid()))))


def test_what_a_child_says_arrives_and_its_stdout_is_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    where: list[Mapping[str, Any]] = []
    rows, said, stages = rows_of(speak, lane(1, 8), where.append)
    assert [row.max_batch_size for row in rows] == [1, 8]
    assert [row.error for row in rows] == [None, None]
    assert {str(int(row.decode_tps_median or 0)) for row in rows} == {where[0]["device"]}
    assert where[0]["device"] != str(os.getpid())
    assert (said, stages) == (["attention: fake"], ["round 1"])
    out, err = capfd.readouterr()
    assert out == ""
    assert "a library speaks" in err
    assert "and so does its C" in err


def die(of: Lane, send: Send) -> None:
    """Finish one row and be killed, as by a system that is short of memory."""
    send((ROW, replace(of.blanks[0], decode_tps_median=1.0)))
    os.kill(os.getpid(), signal.SIGKILL)


def leave(of: Lane, send: Send) -> None:
    """Be killed with a temporary folder in use."""
    tempfile.mkdtemp(prefix=f"flexinfer-vllm-{os.getpid()}-")
    os.kill(os.getpid(), signal.SIGKILL)


def stumble(of: Lane, send: Send) -> None:
    """End without a word."""
    os._exit(7)


def linger(of: Lane, send: Send) -> None:
    """Finish one row, then hang; a child of its own keeps the pipe open."""
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    send((ROW, replace(of.blanks[0], round_tokens=(os.getpid(), forked))))
    time.sleep(600)


def fork_and_die(of: Lane, send: Send) -> None:
    """Leave a process behind that holds the pipe open."""
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    os._exit(3)


def break_down(of: Lane, send: Send) -> None:
    """Fail as an import does, after one row."""
    send((ROW, replace(of.blanks[0], decode_tps_median=1.0)))
    raise ImportError("libcudart.so.13: cannot open\nshared object file")


@pytest.mark.parametrize("debug", [False, True])
def test_what_breaks_a_child_is_the_reason_and_its_traceback_is_for_debug(
    debug: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    rows, _, _ = rows_of(break_down, replace(lane(1, 8), debug=debug))
    why = "internal error: ImportError: libcudart.so.13: cannot open shared object file"
    assert [row.error for row in rows] == [None, f"{why} (--debug shows the traceback)"]
    assert ("Traceback" in capfd.readouterr().err) == debug


def run_out(of: Lane, send: Send) -> None:
    """Fail as an allocation does."""
    raise MemoryError


def miss(of: Lane, send: Send) -> None:
    """Fail as a package does that is not there."""
    raise ModuleNotFoundError("No module named 'peft'", name="peft")


@pytest.mark.parametrize(("work", "code"), [(run_out, 4), (miss, 3)])
def test_what_breaks_a_child_has_the_code_that_it_has_alone(
    work: Callable[[Lane, Send], None], code: int
) -> None:
    rows, _, _ = rows_of(work, lane(1, 8))
    assert [row.error_code for row in rows] == [code, code]


def hang(of: Lane, send: Send) -> None:
    """Close the pipe without a word, and hang, as in an exit handler."""
    send.__self__.close()  # it is the pipe's method
    time.sleep(20)
    os._exit(0)


def test_a_child_that_hangs_without_a_word_is_ended_and_memory_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "SILENT_S", 0.5)
    rows, _, _ = rows_of(hang, lane(1))
    assert [row.error for row in rows] == ["its process said no more and did not end"]


def test_what_a_killed_child_has_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "flexinfer-vllm-1-others").mkdir()
    rows_of(leave, lane(1))
    assert [path.name for path in tmp_path.glob("flexinfer-*")] == ["flexinfer-vllm-1-others"]


@pytest.mark.parametrize(
    ("work", "errors"),
    [
        (die, [None, "its process was killed by SIGKILL (the system may be short of memory)"]),
        (stumble, ["its process ended early with code 7"] * 2),
        (fork_and_die, ["its process ended early with code 3"] * 2),
    ],
)
def test_a_child_that_dies_leaves_rows_with_the_reason(
    work: Callable[[Lane, Send], None], errors: list[str | None]
) -> None:
    rows, _, _ = rows_of(work, lane(1, 8))
    assert [row.error for row in rows] == errors
    assert [row.max_batch_size for row in rows] == [1, 8]
    assert {row.error_code for row in rows if row.error} == {1}


def test_whoever_stops_listening_ends_the_child() -> None:
    listener = Listener(report=lambda *_: None, notice=Once(lambda line: None))
    with closing(child_rows(lane(1), listener, print, linger)) as rows:  # a generator
        pids = next(rows).round_tokens
        assert [alive(pid) for pid in pids] == [True, True]
    assert ended(pids), "one outlives whoever listened"


ORPHAN = """
import os, sys
from tests.tasks.bench.test_child import lane, linger
from flexinfer.tasks.bench.lanes.child import child_rows
from flexinfer.tasks.bench.measure.progress import Once
from flexinfer.tasks.bench.measure.rows import Listener

if __name__ == "__main__":
    listener = Listener(report=lambda *_: None, notice=Once(print))
    rows = child_rows(lane(1), listener, print, linger)
    print(*next(rows).round_tokens, flush=True)
    os._exit(0)
"""


def test_a_child_whose_parent_is_gone_does_not_stay(tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    pids = [*map(int, done.stdout.split())]
    assert len(pids) == 2
    assert ended(pids), "it outlives its parent"


def ended(pids: Sequence[int]) -> bool:
    """Whether processes end, which takes the kernel a moment after they are killed."""
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(alive, pids))


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
