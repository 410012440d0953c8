"""From what a probe printed to facts, and from how it ended to one line."""

import sys

import pytest

from flexinfer.tasks.doctor import probe
from flexinfer.tasks.doctor.process import RunOutcome
from tests.tasks.doctor.fakes import FakeRun, machine, says

TRACE = """Warning: something
Traceback (most recent call last):
  File "/x.py", line 3, in <module>
    import flash_attn
ImportError: /lib/x.so: undefined symbol: _ZN3c10
"""


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (RunOutcome(code=0, stderr="noise"), None),
        (RunOutcome(code=None), "no answer within 9 s"),
        (RunOutcome(code=-11), "crashed (SIGSEGV)"),
        (RunOutcome(code=1, stderr=TRACE), "ImportError: /lib/x.so: undefined symbol: _ZN3c10"),
        (RunOutcome(code=1, stderr=TRACE + "\nhelp: see the manual\n"),
         "ImportError: /lib/x.so: undefined symbol: _ZN3c10"),
        (RunOutcome(code=1, stderr="torch.cuda.OutOfMemoryError: x"),
         "torch.cuda.OutOfMemoryError: x"),
        (RunOutcome(code=2, stderr="cc1plus: not found\n\n"), "exit code 2: cc1plus: not found"),
        (RunOutcome(code=4), "exit code 4: nothing on stderr"),
    ],
)  # fmt: skip
def test_failure_line(outcome, line):
    assert probe.failure_line(outcome, 9.0) == line


def test_facts_survive_a_crash_and_noise_is_no_fact(tmp_path):
    stdout = 'loading...\n{"version": "1"}\n3\n{"a": 1}\n{"version": "2"}\n'
    run = FakeRun({"graph": RunOutcome(code=-6, stdout=stdout)})
    seen = []
    made = probe.run_probe(machine(tmp_path, run=run), "graph", timeout_s=5, on_row=seen.append)
    assert made.facts == {"version": "2", "a": 1}
    assert len(seen) == 3
    assert made.error == "crashed (SIGABRT)"


def test_a_missing_module_is_told_from_one_that_misses_another():
    def ended(name):
        return probe.Probe(error=f"ModuleNotFoundError: No module named '{name}'")

    assert ended("torch").lacks("torch")
    assert not ended("torchgen").lacks("torch")
    assert not ended("flash_attn.cute.x").lacks("flash_attn.cute")


def test_a_probe_finds_no_neighbour_instead_of_a_package(tmp_path):
    """The folder of the scripts holds flex.py and hub.py, which must shadow nothing."""
    run = FakeRun({"hub": says({"x": 1})})
    probe.run_probe(machine(tmp_path, run=run), "hub", "arg", timeout_s=5, on_row=print)
    [argv] = run.asked
    assert argv[1] == "-P"
    assert argv[2].endswith("probes/start.py")
    assert argv[3].endswith("probes/hub.py")
    assert argv[4:] == ["arg"]
    assert sys.version_info >= (3, 11)


def test_long_messages_become_one_short_line():
    clipped = probe.clip("word\n  " * 200)
    assert len(clipped) == probe.LONGEST
    assert "\n" not in clipped
