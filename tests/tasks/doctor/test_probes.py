"""The probe scripts themselves, run for real where a CPU can."""

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flexinfer.core.host_memory import host_memory
from flexinfer.tasks.doctor import environment
from flexinfer.tasks.doctor.checks.hub import HUB_TIMEOUT_S
from flexinfer.tasks.doctor.probe import run_probe
from tests.tasks.doctor.fakes import look

SECRET = "hf_S3cretS3cret"


def run(script, *arguments, timeout_s=120.0, **variables):
    here = environment.this_machine()
    changed = {**here.variables, "OMP_NUM_THREADS": "1", **variables}
    here = environment.Environment(**{**vars(here), "variables": changed})
    return run_probe(here, script, *arguments, timeout_s=timeout_s, on_row=lambda row: None)


@pytest.mark.slow
def test_compiled_flex_reads_the_pages_it_is_given():
    made = run("flex", "{}", "128")
    assert made.error is None
    assert made.facts["error"] < 1e-5
    assert made.facts["kernel"] == "C++"


def test_uncompiled_flex_ignores_its_pages_and_the_probe_sees_it():
    """A head dim that cannot be (-1) is a row of its own and does not stop the next."""
    made = run("flex", "{}", "-1", "128", TORCHDYNAMO_DISABLE="1")
    assert made.error is None
    impossible, ignored = made.rows
    assert "RuntimeError" in impossible["failed"]
    assert ignored["error"] > 0.1


def test_torch_facts_of_this_machine():
    import torch

    made = run("torch_facts")
    assert made.error is None
    assert made.facts["version"] == torch.__version__
    assert made.facts["cuda_available"] == torch.cuda.is_available()


def test_importing_tells_the_version_before_it_takes_names():
    made = run("importing", "pytest", "no_such_name")
    assert made.facts["version"] == pytest.__version__
    assert made.error.startswith("AttributeError")
    assert run("importing", "pytest", "raises").facts["names"] is True


def test_a_probe_collects_no_garbage_and_fails_as_it_would_without_a_starter(tmp_path):
    code = "import gc, json, sys; print(json.dumps({'collects': gc.isenabled(), 'argv': sys.argv}))"
    (tmp_path / "looks.py").write_text(code)
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    (tmp_path / "raises.py").write_text("raise OSError('lib.so')")
    path = {"PYTHONPATH": str(tmp_path)}
    made = run("importing", "looks", "json", **path)
    assert made.error is None
    assert made.facts["collects"] is False
    assert [Path(made.facts["argv"][0]).name, *made.facts["argv"][1:]] == [
        "importing.py", "looks", "json",
    ]  # fmt: skip
    assert run("importing", "leaves", **path).error == "exit code 3: nothing on stderr"
    assert run("importing", "raises", **path).error == "OSError: lib.so"


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        codes = {"/api/models/a/open": 200, "/api/models/a/gated": 401, "/api/models/a/moved": 307}
        self.send_response(codes.get(self.path, 404))
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = HTTPServer(("127.0.0.1", 0), Hub)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_hub_is_asked_with_a_token_that_goes_nowhere_else(hub):
    address = f"http://127.0.0.1:{hub.server_port}"
    made = run("hub", address, "a/open", "a/gated", "a/moved", "a/none", HF_TOKEN=SECRET)
    assert made.error is None
    assert made.facts["repos"] == {"a/open": 200, "a/gated": 401, "a/moved": 307, "a/none": 404}
    assert all(auth == f"Bearer {SECRET}" for path, auth in hub.seen if path.startswith("/api"))
    assert "/elsewhere" not in [path for path, _ in hub.seen]
    assert SECRET not in json.dumps(made.rows)


def test_a_hub_that_is_not_there(hub):
    port = hub.server_port
    hub.shutdown()
    hub.server_close()
    made = run("hub", f"http://127.0.0.1:{port}", "a/open")
    assert made.facts["reachable"] is False
    assert "refused" in made.facts["reason"]


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_hub_that_takes_the_call_and_stays_silent(tmp_path, says):
    """Of the black hole the probe itself gets tired; of one that dribbles, the check."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        threading.Thread(target=_dribble, args=(hole, says), daemon=True).start()
        address = f"http://127.0.0.1:{hole.getsockname()[1]}"
        here = environment.this_machine()
        changed = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "", "HF_HOME": str(tmp_path)}
        fields = {**vars(here), "variables": {**here.variables, **changed}}
        began = time.perf_counter()
        line = look(environment.Environment(**fields), "hub", model="qwen3-0.6b")
    assert time.perf_counter() - began < HUB_TIMEOUT_S + 2
    assert line.status == "fail"
    assert ("no answer within 6 s" if says else "timed out") in line.found


def _dribble(hole, says):
    call, _ = hole.accept()
    with contextlib.suppress(OSError), call:
        while says:
            call.sendall(says)
            says = b"x"
            time.sleep(0.5)
        time.sleep(30)


def test_this_machine_answers():
    here = environment.this_machine()
    assert here.host_memory is host_memory
    assert here.host_memory() > 0
    assert here.version_of("pytest") == pytest.__version__
    assert here.version_of("no-such-distribution") is None
    assert list(here.requires_of("no-such-distribution")) == []
    assert here.findable("json")
    assert not here.findable("no_such_module")
    assert here.disk_free(here.home / "not" / "yet" / "made") > 0
    assert not here.writable(Path("/dev/null/.cache/hub"))
    with tempfile.TemporaryDirectory() as folder:
        assert here.writable(Path(folder, "not", "yet", "made"))
        os.chmod(folder, 0o555)
        assert here.writable(Path(folder, "not")) is (os.geteuid() == 0)
    assert here.executable == sys.executable
    assert here.variables["PATH"] == os.environ["PATH"]
