"""Case A23: real processes importing packages that are broken on purpose, and torch worst of all.

Fake modules lie on PYTHONPATH; doctor itself runs in a process that dies if it imports torch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
SYMBOL = "raise ImportError('/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS')"
SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
SYSTEM_EXIT = "raise SystemExit('torch: please reinstall')"
PROGRAM = """
import json, sys
from flexinfer.tasks.doctor.report import DoctorConfig
from flexinfer.tasks.doctor.run import run_doctor
config = json.loads(sys.argv[1])
report = run_doctor(DoctorConfig(**config | {"checks": tuple(config["checks"])}))
print(json.dumps(report.as_dict()))
sys.exit(report.exit_code)
"""


def doctor(folder: Path, modules: dict[str, str], checks: list[str], **config):
    """Run doctor in a process of its own; return (exit code, lines by name, stderr)."""
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    path = os.pathsep.join([str(folder), str(REPO)])
    environment = os.environ | {"PYTHONPATH": path, "HF_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(config | {"checks": checks})],
        capture_output=True, text=True, env=environment, timeout=120, cwd=folder,
    )  # fmt: skip
    lines = json.loads(done.stdout)["checks"]
    return done.returncode, {line["name"]: line for line in lines}, done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (NO_TORCH, "not installed"),
        (SEGFAULT, "crashed (SIGSEGV)"),
        (SYSTEM_EXIT, "torch: please reinstall"),
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
    ],
)
def test_torch_missing_or_broken(tmp_path, code, said):
    checks = ["python", "device", "transformers", "peft", "compiler", "model", "token", "disk"]
    exit_code, lines, stderr = doctor(tmp_path, {"torch": code}, checks)
    assert exit_code == 1
    assert stderr == ""
    assert lines["torch"]["status"] == "fail"
    assert said in lines["torch"]["found"]
    assert lines["torch"]["fix"]
    assert {lines[name]["status"] for name in ("device", "peft")} == {"skip"}
    assert {lines[n]["status"] for n in ("python", "model", "disk", "transformers")} == {"ok"}


def test_fakes_that_are_each_broken_in_their_own_way(tmp_path):
    """Every broken package gets its own line with a cure, and the line says what broke."""
    modules = {
        "torch": (
            "__version__ = '2.13.0'\n"
            "class version: cuda = hip = None\n"
            "class cuda:\n"
            "    is_available = staticmethod(lambda: False)\n"
            "class backends:\n"
            "    class cpu: get_cpu_capability = staticmethod(lambda: 'AVX2')\n"
            "def zeros(*_, **__): raise AssertionError('not compiled with CUDA')\n"
        ),
        "flash_attn": SYMBOL,
        "bitsandbytes": "__version__ = '0.50.0'\nraise RuntimeError('libbitsandbytes_cuda130.so')",
        "transformers": "__version__ = '5.4.0'",
        "trl": "__version__ = '1.16.0'",
        "vllm": "__version__ = '0.33.0'",
    }
    checks = ["flash-attn-4", "bitsandbytes", "transformers", "vllm"]
    arguments = {"model": "gemma-4-E2B-it", "mode": "4bit"}
    exit_code, lines, stderr = doctor(tmp_path, modules, checks, **arguments)
    assert (exit_code, stderr) == (1, "")
    found = {name: (lines[name]["status"], lines[name]["found"]) for name in checks}
    assert found["flash-attn-4"][0] == "warn"
    assert "undefined symbol" in found["flash-attn-4"][1]
    assert found["bitsandbytes"][0] == "fail"
    assert "libbitsandbytes_cuda130.so" in found["bitsandbytes"][1]
    assert found["transformers"] == ("fail", "5.4.0, for gemma-4-E2B-it")
    assert found["vllm"] == ("warn", "vLLM 0.33.0 beside TRL 1.16.0")
    assert all(lines[name]["fix"] and lines[name]["why"] for name in checks)


def test_doctor_imports_no_torch_and_starts_fast(tmp_path):
    code = "import flexinfer.tasks.doctor.run, sys; print([m for m in sys.modules if m in HEAVY])"
    heavy = "HEAVY = {'torch', 'transformers', 'numpy', 'huggingface_hub'}; "
    done = subprocess.run(
        [sys.executable, "-c", heavy + code], capture_output=True, text=True, cwd=REPO, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
