"""What only a process of its own shows: pipes, signals, full disks and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.support.processes import FAKE, GENERATE, ROOT, start


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"prompt": "x" * 400}) + "\n" for _ in range(500)))
    read, write = os.pipe()
    process = start([*GENERATE, "--input", str(source), "--quiet"], stdout=write)
    os.close(write)
    assert os.read(read, 10) == b'{"id": 0, '
    os.close(read)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")


def test_help_into_a_closed_pipe_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    process = start([*FAKE, "generate", "--help"], stdout=write)
    os.close(write)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")


@pytest.mark.parametrize("words", [["a"], ["a", "--json"], ["a", "--output", "/dev/full"]])
def test_a_full_disk_is_one_error_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = start([*GENERATE, *words, "--quiet"], stdout=full)
    _, stderr = process.communicate(timeout=60)
    where = "/dev/full" if "--output" in words else "standard output"
    assert process.returncode == 1
    assert stderr == f"error: cannot write {where}: No space left on device\n"


def test_a_closed_stdout_is_an_error_and_a_closed_stderr_is_none() -> None:
    process = start(["bash", "-c", f"{' '.join(GENERATE)} a >&-"])
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: cannot write standard output" in stderr
    process = start(["bash", "-c", f"{' '.join(GENERATE)} a '' 2>&-"])
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (1, "<USER>A\n\n")


@pytest.mark.parametrize("target", ["file", "-"])
def test_ctrl_c_keeps_finished_results(tmp_path: Path, target: str) -> None:
    source = tmp_path / "in.jsonl"
    lines = [{"prompt": "a", "id": "one"}, {"prompt": "wait"}, {"prompt": "c", "id": "three"}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = str(tmp_path / "out.jsonl") if target == "file" else "-"
    process = start([*GENERATE, "--input", str(source), "--output", path])
    stderr: IO[str] | None = process.stderr
    assert stderr is not None
    while stderr.readline() != "waiting\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest
    text = Path(path).read_text() if target == "file" else stdout
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["one", "three"]


def test_ctrl_c_while_the_interpreter_ends_is_no_traceback() -> None:
    """With torch that takes a second, in the clearing up of any library."""
    slow = (
        "import atexit, time\n"
        "atexit.register(lambda: (print('ending', flush=True), time.sleep(60)))\n"
        "from flexinfer.__main__ import main\n"
        "main()\n"
    )
    process = start([sys.executable, "-c", slow, "--version"])
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    while stdout.readline() != "ending\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (-signal.SIGINT, "")


def on_terminal(
    words: list[str], stdout: IO[str] | None = None, **variables: str
) -> tuple[int, str]:
    """Run with a terminal for stderr and stdout (or a file for that); return code and screen."""
    leader, follower = pty.openpty()
    process = start(words, stdout=stdout or follower, stderr=follower, variables=variables)
    os.close(follower)
    shown = b""
    try:
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:
        pass
    os.close(leader)
    return process.wait(timeout=60), shown.decode()


def visible(shown: str) -> list[str]:
    """Return the lines that a terminal would be left with, roughly: no control sequences."""
    bare = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r\n", "\n")
    return [line.split("\r")[-1] for line in bare.split("\n")]


def test_a_single_prompt_streams_on_a_terminal() -> None:
    code, shown = on_terminal([*GENERATE, "hé", "--quiet"])
    assert (code, shown) == (0, "<USER>HÉ\r\n")
    code, shown = on_terminal([*GENERATE, "hé", "--quiet", "--stop", "É"])
    assert (code, shown) == (0, "<USER>H\r\n")
    code, shown = on_terminal([*GENERATE, "crash", "--quiet"])
    assert (code, shown.splitlines()[0]) == (
        1,
        "error: internal error: RuntimeError: the engine fell over",
    )


def test_bars_and_texts_share_a_terminal() -> None:
    code, shown = on_terminal([*GENERATE, "a", "b"], TERM="xterm")
    lines = visible(shown)
    assert code == 0
    texts = [line for line in lines if line.startswith(("<USER>", "---"))]
    assert texts == ["--- 0: a", "<USER>A", "--- 1: b", "<USER>B"]
    assert "\x1b[" in shown
    assert "capture" in shown


def test_samples_of_a_prompt_are_told_apart_on_a_terminal_alone(tmp_path: Path) -> None:
    words = [*GENERATE, "a", "-n", "2", "--quiet"]
    code, shown = on_terminal(words)
    assert code == 0
    assert shown.splitlines() == [
        "--- sample 1 of 2", "<USER>A", "--- sample 2 of 2", "<USER>A",
    ]  # fmt: skip
    with (tmp_path / "out").open("w+") as stdout:
        on_terminal(words, stdout=stdout)
        stdout.seek(0)
        assert stdout.read() == "<USER>A\n<USER>A\n"


def test_bars_leave_a_redirected_stdout_alone(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as stdout:
        code, shown = on_terminal([*GENERATE, "a", "b"], stdout=stdout, TERM="xterm")
        stdout.seek(0)
        assert (code, stdout.read()) == (0, "<USER>A\n<USER>B\n")
    assert "<USER>" not in shown


def test_no_color_is_respected() -> None:
    colour = re.compile(r"\x1b\[[0-9;]*m")
    words = [*GENERATE, "a", "b"]
    assert colour.search(on_terminal(words, TERM="xterm-256color", NO_COLOR="")[1])
    plain = on_terminal(words, TERM="xterm-256color", NO_COLOR="1")[1]
    assert not re.search(r"\x1b\[(3|4|9)[0-9;]*m", plain)


def test_text_is_utf8_whatever_the_locale() -> None:
    variables = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    process = start([*GENERATE, "é", "--quiet"], variables=variables, encoding="utf-8")
    assert process.communicate(timeout=60)[0] == "<USER>É\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_keeps_finished_results(tmp_path: Path, number: int) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "a", "id": "one"}, {"prompt": "wait"}, {"prompt": "c", "id": "three"}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    process = start([*GENERATE, "--input", str(source), "--output", str(target)])
    assert process.stderr is not None
    while process.stderr.readline() != "waiting\n":
        assert process.poll() is None
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in rest) == (143, False)
    assert rest.splitlines()[-1] == "terminated (--resume makes the rest)"
    text = target.read_text()
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["one", "three"]


TERMINATED_TWICE = """
import os, signal, sys, time
from flexinfer.cli.terminal.failures import guard
from flexinfer.cli.terminal.signals import terminable

def terminate():
    for number in (signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)

def work():
    try:
        terminate()
        time.sleep(60)
    finally:
        terminate()
        print("kept")

with terminable():
    code = guard(work, debug=False)
terminate()
sys.exit(code)
"""


def test_a_second_sigterm_interrupts_no_rescue() -> None:
    process = start([sys.executable, "-c", TERMINATED_TWICE])
    assert process.communicate(timeout=60) == ("kept\n", "terminated\n")
    assert process.returncode == 143


SWALLOWED = """
import os, signal, sys
import flexinfer.tasks.generate.run as run
from flexinfer.cli.main import app

def load(options, report):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("imported by halves") from None

run.load_model = load
app(["generate", "a", "-m", "tiny-gemma4"])
"""


def test_an_interruption_that_an_import_swallowed_is_still_one() -> None:
    process = start([sys.executable, "-c", SWALLOWED])
    assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("ignored", "ending", "code"),
    [(signal.SIGTERM, signal.SIGINT, 130), (signal.SIGHUP, signal.SIGTERM, 143)],
    ids=["TERM", "HUP, as by nohup"],
)
def test_a_signal_that_is_ignored_from_the_beginning_stays_so(
    ignored: signal.Signals, ending: signal.Signals, code: int
) -> None:
    process = start(["bash", "-c", f"trap '' {ignored.name}; exec {' '.join(GENERATE)} wait"])
    assert process.stderr is not None
    while process.stderr.readline() != "waiting\n":
        assert process.poll() is None
    process.send_signal(ignored)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(ending)
    process.communicate(timeout=60)
    assert process.returncode == code


def test_a_closed_stdout_is_no_matter_where_a_file_takes_the_output(tmp_path: Path) -> None:
    target = tmp_path / "out"
    process = start(["bash", "-c", f"{' '.join(GENERATE)} a -q -o {target} --format text >&-"])
    assert process.communicate(timeout=60)[1] == ""
    assert (process.returncode, target.read_text()) == (0, "<USER>A\n")


def test_a_closed_stdin_is_one_error_line() -> None:
    process = start(["bash", "-c", f"{' '.join(GENERATE)} --input - 0<&-"])
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr == "error: --input -: standard input is closed\n"


@pytest.mark.parametrize(
    "words",
    ["--input - -o in < in", "--input in -o in", "--input in -o link", "--input - >> in < in",
     "--input /dev/stdin -o in --resume < in"],
)  # fmt: skip
def test_the_input_is_not_written_over_by_any_name(tmp_path: Path, words: str) -> None:
    source = tmp_path / "in"
    source.write_text('{"prompt": "a"}\n')
    (tmp_path / "link").hardlink_to(source)
    variables = {"PYTHONPATH": str(ROOT)}
    process = start(["bash", "-c", f"cd {tmp_path}; {' '.join(GENERATE)} {words}"],
                    variables=variables)  # fmt: skip
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert "is the same file as --input" in stderr.splitlines()[0]
    assert source.read_text() == '{"prompt": "a"}\n'


def test_input_and_output_may_share_what_is_no_file() -> None:
    process = start([*GENERATE, "--input", "/dev/null", "--output", "/dev/null"])
    assert (process.wait(timeout=60), process.communicate()[0]) == (0, "")


def test_two_processes_do_not_share_an_output(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("")
    words = ["--output", str(target)]
    first = start([*GENERATE, "a", "wait", *words])
    assert first.stderr is not None
    while first.stderr.readline() != "waiting\n":
        assert first.poll() is None
    second = start([*GENERATE, "b", *words])
    _, stderr = second.communicate(timeout=60)
    assert second.returncode == 2
    assert stderr.splitlines()[0] == f"error: --output {target}: another process is writing to it"
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [0]


def test_a_failed_single_prompt_shows_no_empty_line_on_a_terminal() -> None:
    code, shown = on_terminal([*GENERATE, "", "--quiet"])
    assert (code, shown) == (1, "error: request 0: the prompt is empty\r\n")
    code, shown = on_terminal([*GENERATE, "x" * 600, "--quiet"])
    assert (code, len(shown.splitlines())) == (1, 1)
