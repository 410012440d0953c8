"""Runs pytest sessions in forks of one process that has imported what takes long, once for all.

Run it as a program with a folder for its files: it reads `[[name, root, words], ...]` as JSON from
standard input, and prints `[name, exit code, output]` as JSON when a session ends, two of them
running at a time. Nothing of the project is imported here, so each session imports what lies in its
own `root`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

HEAVY = (
    *("torch._inductor", "torch.testing", "triton.language", "triton.runtime.interpreter"),
    *("transformers", "hypothesis", "pytest"),
)
AT_ONCE = 2
Job = tuple[str, str, list[str]]


def fork_session(root: str, words: list[str], output: Path) -> int:
    """Start `pytest WORDS` in `root`, both of its streams going to a file; return its process."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(root)
        sys.path.insert(0, root)
        import pytest

        code = int(pytest.main(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(waiting: list[Job], folder: Path) -> None:
    """Run sessions, two at a time, and report each as it ends."""
    running: dict[int, tuple[str, Path]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name, root, words = waiting.pop(0)
            output = folder / f"{len(waiting)}.txt"
            running[fork_session(root, words, output)] = name, output
        pid, status = os.wait()
        name, output = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps([name, code, output.read_text()]), flush=True)


def main() -> None:
    """Import what takes long, and run the sessions that are asked for."""
    del sys.path[0]  # this folder: its modules have names that others have too
    asked: list[Job] = json.load(sys.stdin)
    for module in HEAVY:
        importlib.import_module(module)
    gc.freeze()  # sessions collect garbage at their end: not what is imported
    run(asked, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
