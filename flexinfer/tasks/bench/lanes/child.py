"""A lane in a process of its own: nothing of one back end is left when the next one begins.

The child is spawned, leads a session of its own (Ctrl-C is the parent's affair), and sends what it
has to say over a pipe as (kind, value). Its stdout is stderr, so that no library writes into data.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir
from typing import Any

from flexinfer.errors import Failure, failure_of
from flexinfer.tasks.bench.lanes.lanes import Lane, failed_rows, whole_rows
from flexinfer.tasks.bench.measure.progress import Once
from flexinfer.tasks.bench.measure.rig import Rig
from flexinfer.tasks.bench.measure.rows import Listener, heard
from flexinfer.tasks.bench.result import BenchResult

POLL_S, GRACE_S, SILENT_S = 0.5, 5.0, 30.0
"""Between looks; for a child to end after END; and without it: what holds much dies slowly."""
ROW, NOTICE, PROGRESS, ENVIRONMENT, END = "row", "notice", "progress", "environment", "end"
"""What is sent; the value of END is the Failure that broke the work, None where nothing did."""
Send = Callable[[tuple[str, Any]], None]
Work = Callable[[Lane, Send], None]


def measure_lane(lane: Lane, send: Send) -> None:
    """Measure a lane, in the child: send its environment, then its rows, one by one."""
    rig = Rig()
    listener = Listener(
        report=lambda stage, done, total: send((PROGRESS, (stage, done, total))),
        notice=Once(lambda line: send((NOTICE, line))),
        failed=heard(lane.debug),
    )
    send((ENVIRONMENT, dict(rig.environment())))
    for row in whole_rows(lane, listener, rig):
        send((ROW, row))


def child_rows(
    lane: Lane,
    listener: Listener,
    environment: Callable[[Mapping[str, Any]], None],
    work: Work = measure_lane,
) -> Iterator[BenchResult]:
    """Run `work` in a child and yield its rows; a child that dies leaves rows with the reason.

    `environment` hears where the child runs. However this ends, the child has ended then.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_begin, args=(work, lane, theirs))
    process.start()
    theirs.close()
    done, ended, hung = 0, False, False
    failure: Failure | None = None
    try:
        for kind, value in _messages(ours, process):
            if kind == ROW:
                done += 1
                yield value
            elif kind == NOTICE:
                listener.notice(value)
            elif kind == PROGRESS:
                listener.report(*value)
            elif kind == ENVIRONMENT:
                environment(value)
            else:
                ended, failure = True, value
        process.join(GRACE_S if ended else SILENT_S)
        hung = process.is_alive()
    finally:
        _end(process)
        _sweep(process)
        ours.close()
    how = "said no more and did not end" if hung else _how(process.exitcode)
    yield from failed_rows(lane, done, failure or Failure(f"its process {how}", None, 1))


def _messages(ours: Connection[Any, Any], process: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a child sends, until it says so or is gone.

    It is asked whether it lives: what it forked may hold the pipe open after it.
    """
    kind = ""
    while kind != END:
        if ours.poll(POLL_S):
            try:
                kind, value = ours.recv()
            except EOFError:
                return
            yield kind, value
        elif not process.is_alive() and not ours.poll(0):
            return


def _end(process: Any) -> None:
    """End a child that still lives, with all that it has started.

    It does so itself where it can (see _begin); where it hangs its group is ended from here, which
    is safe as long as it was not waited for: until then nobody else's group has its number.
    """
    if not process.is_alive():
        return
    process.terminate()
    process.join(GRACE_S)
    if process.is_alive():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _sweep(process: Any) -> None:
    """Remove the folders that a child which was killed has left, named for its number."""
    for left in Path(gettempdir()).glob(f"flexinfer-*-{process.pid}-*"):
        rmtree(left, ignore_errors=True)


def _how(code: int | None) -> str:
    """Say how a process ended."""
    if code is None or code >= 0:
        return f"ended early with code {code}"
    name = signal.Signals(-code).name
    hint = " (the system may be short of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _begin(work: Work, lane: Lane, theirs: Connection[Any, Any]) -> None:
    """Begin in the child: apart from the terminal, and never without the parent."""
    os.setsid()
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    failure = None
    try:
        work(lane, theirs.send)
    except Exception as error:
        heard(lane.debug)(error)
        failure = failure_of(error)
    theirs.send((END, failure))


def _follow(sentinel: int) -> None:
    """End the child and what it has started when the parent is gone."""
    wait([sentinel])
    os.killpg(0, signal.SIGKILL)
