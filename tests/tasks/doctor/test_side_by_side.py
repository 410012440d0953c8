"""Checks overlap, within bounds, on a device only where it bears it, and nothing outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flexinfer.tasks.doctor.crew import Crew
from flexinfer.tasks.doctor.lazy import Lazy
from flexinfer.tasks.doctor.process import RunOutcome
from flexinfer.tasks.doctor.registry import select
from flexinfer.tasks.doctor.report import DoctorConfig
from flexinfer.tasks.doctor.run import LONGEST, run_doctor
from tests.tasks.doctor.fakes import GIB, FakeRun, machine, on_cuda, says

REPO = Path(__file__).parents[3]
PACKAGES = ("transformers", "peft", "accelerate", "datasets", "trl", "flash-attn-4", "bitsandbytes")
MODULES = ("transformers", "peft", "accelerate", "datasets", "trl", "flash_attn", "bitsandbytes")
NAP_S = 0.25


class Slow(FakeRun):
    """Takes its time over each probe; remembers how many ran at once, and who beside whom."""

    def __init__(self, answers):
        super().__init__(answers)
        self._lock = threading.Lock()
        self._now = []
        self.most = 0
        self.begun = []
        self.beside = set()

    def __call__(self, argv, **how):
        if "-P" not in argv:
            return super().__call__(argv, **how)
        script = Path(argv[3]).stem
        with self._lock:
            self.beside |= {frozenset((script, other)) for other in self._now}
            self._now.append(script)
            self.begun += [argv[4]] if script == "importing" else []
            self.most = max(self.most, self._now.count("importing"))
        time.sleep(NAP_S)
        with self._lock:
            self._now.remove(script)
        return super().__call__(argv, **how)


def slow(tmp_path, cores=8, answers=None, **fields):
    said = {f"importing {name}": says({"version": "9.0"}, {"names": True}) for name in MODULES}
    healthy = machine(tmp_path).run.answers | said
    run = Slow(healthy | (answers or {}))
    return machine(tmp_path, run=run, cores=cores, modules=MODULES, **fields)


def test_slow_probes_overlap(tmp_path):
    here = slow(tmp_path)
    began = time.perf_counter()
    made = run_doctor(DoctorConfig(checks=PACKAGES), environment=here)
    wall = time.perf_counter() - began
    probes = sum("-P" in argv for argv in here.run.asked)
    assert probes >= 8
    assert wall < probes * NAP_S / 2
    assert [line.name for line in made.checks] == [
        check.name for check in select(PACKAGES) if check.name in PACKAGES
    ]


@pytest.mark.parametrize(("cores", "most"), [(1, 2), (3, 3), (64, 8)])
def test_imports_are_bounded(tmp_path, cores, most):
    here = slow(tmp_path, cores=cores)
    run_doctor(DoctorConfig(checks=PACKAGES), environment=here)
    assert 1 < here.run.most <= most


def test_the_longest_imports_begin_first(tmp_path):
    here = slow(tmp_path, cores=1)
    made = run_doctor(DoctorConfig(checks=("torch", *PACKAGES)), environment=here)
    assert set(here.run.begun[:2]) == LONGEST
    assert {line.name: line.found for line in made.checks}["torch"] == "2.13.0+cpu, CPU build"


def test_the_report_is_the_same_each_time(tmp_path):
    reports = [run_doctor(DoctorConfig(), environment=slow(tmp_path)) for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]


def gpu(free=138 * GIB, compute="Default"):
    smi = RunOutcome(code=0, stdout=f"580.65, NVIDIA H200, {compute}\n")
    return {
        "torch_facts": on_cuda(free=free),
        "nvidia-smi": smi,
        "graph": says({"error": 0.0, "replay_us": 9.0}),
        "flex": says({"head_dim": 128, "seconds": 1.0, "error": 0.0, "kernel": "TRITON"}),
        "nf4": says({"version": "9.0"}, {"device": "cuda", "error": 0.0, "distance": 0.09}),
    }


@pytest.mark.parametrize(
    ("answers", "together"),
    [
        (gpu(), True),
        (gpu(compute="Exclusive_Process"), False),
        (gpu(free=2 * GIB), False),
    ],
)
def test_a_device_is_shared_only_where_it_bears_it(tmp_path, answers, together):
    here = slow(tmp_path, answers=answers, programs=("g++", "nvidia-smi"))
    checks = ("cuda-graphs", "bitsandbytes", "flex-128")
    made = run_doctor(DoctorConfig(checks=checks), environment=here)
    lines = {line.name: line.status for line in made.checks}
    assert {lines[name] for name in checks} == {"ok"}
    device = {"graph", "nf4", "flex"}
    assert any(pair <= device for pair in here.run.beside) is together
    # What is free is measured before anything else holds memory there.
    assert not any("torch_facts" in pair and pair & device for pair in here.run.beside)


def test_threads_share_one_answer_and_one_error():
    asked = []

    def question():
        asked.append(1)
        time.sleep(0.05)
        raise KeyError("x")

    lazy, caught = Lazy(question), []

    def ask():
        try:
            lazy.get()
        except KeyError as error:
            caught.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(asked), len(caught)) == (1, 4)


def test_a_stopped_crew_starts_nothing(tmp_path):
    crew = Crew()
    crew.stop()
    argv = ["touch", str(tmp_path / "made")]
    outcome = crew(argv, timeout_s=5, variables={}, on_line=print)
    assert outcome.code == -signal.SIGKILL
    assert not (tmp_path / "made").exists()


HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
with open(os.path.join(os.path.dirname(__file__), "pids"), "a") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
time.sleep(60)
"""
PROGRAM = """
from flexinfer.tasks.doctor.report import DoctorConfig
from flexinfer.tasks.doctor.run import run_doctor
run_doctor(DoctorConfig(checks=("torch", "peft", "accelerate")))
"""


def started(folder):
    file = folder / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait(condition, seconds=20.0):
    deadline = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
def test_an_interrupt_ends_every_group_at_once(tmp_path):
    for name in ("torch", "peft", "accelerate"):
        (tmp_path / f"{name}.py").write_text(HANGS)
    path = os.pathsep.join([str(tmp_path), str(REPO)])
    doctor = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert wait(lambda: len(started(tmp_path)) == 6), started(tmp_path)
        doctor.send_signal(signal.SIGINT)
        assert doctor.wait(10) != 0
    finally:
        doctor.kill()
        doctor.wait()
    pids = started(tmp_path)
    survived = not wait(lambda: not any(map(alive, pids)), 5.0)
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)
    assert not survived
