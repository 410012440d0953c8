"""Processes that end well, badly, by a signal or not at all."""

import os
import sys
import time

import pytest

from flexinfer.tasks.doctor.process import run_process


def run(code: str, timeout_s: float = 20.0, lines=None):
    on_line = (lambda line: None) if lines is None else lines.append
    argv = [sys.executable, "-S", "-c", code]
    return run_process(argv, timeout_s=timeout_s, variables={"A": "b"}, on_line=on_line)


def test_output_and_environment_come_through():
    outcome = run(
        "import os, sys; print(dict(os.environ)['A']); sys.stderr.write('oh'); sys.exit(3)"
    )
    assert (outcome.code, outcome.stdout, outcome.stderr) == (3, "b\n", "oh")


def test_lines_come_while_the_process_still_runs():
    arrivals = []

    class Clock(list):
        def append(self, line):
            arrivals.append(time.perf_counter())

    run("import time; print(1, flush=True); time.sleep(0.6); print(2)", lines=Clock())
    assert arrivals[1] - arrivals[0] > 0.3


def test_a_signal_is_told():
    assert run("import os; os.kill(os.getpid(), 11)").code == -11


def test_a_hanging_process_is_killed_with_its_children():
    began = time.perf_counter()
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
    outcome = run(code, timeout_s=1.0)
    assert outcome.code is None
    assert time.perf_counter() - began < 15
    deadline = time.perf_counter() + 5
    while _alive(int(outcome.stdout)) and time.perf_counter() < deadline:
        time.sleep(0.05)
    assert not _alive(int(outcome.stdout))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
def test_a_child_left_behind_is_killed_too():
    code = """
import subprocess, sys
quiet = subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdout=quiet)
print(child.pid)
"""
    outcome = run(code)
    assert outcome.code == 0
    deadline = time.perf_counter() + 5
    while _alive(int(outcome.stdout)) and time.perf_counter() < deadline:
        time.sleep(0.05)
    assert not _alive(int(outcome.stdout))


def test_a_missing_program_is_an_outcome():
    outcome = run_process(["/no/such"], timeout_s=5, variables={}, on_line=lambda line: None)
    assert outcome.code == 127
    assert "No such file" in outcome.stderr
