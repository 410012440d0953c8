"""Import torch, say what it was built for, then touch each CUDA device. Prints JSON lines.

First {"version", "cuda" (build, None: CPU), "hip", "cpu_capability"}, then {"cuda_available",
"cuda_error"}, then {"devices": [{"name", "capability", "total", "free"}], "arch_list"} (in bytes),
then {"matmul_error"}: the largest relative error of a product on the first device.
"""

from __future__ import annotations

import json
from typing import Any

import torch


def say(**facts: Any) -> None:
    """Print one line of facts now, so that a later crash does not take it along."""
    print(json.dumps(facts), flush=True)


def cuda_error() -> str | None:
    """Return why CUDA cannot be used, None where it can."""
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return None


def device(index: int) -> dict[str, Any]:
    """Describe one CUDA device."""
    free, total = torch.cuda.mem_get_info(index)
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    return {"name": name, "capability": capability, "total": total, "free": free}


def matmul_error() -> float:
    """Multiply on the first CUDA device and return the largest error relative to the CPU's."""
    a = torch.linspace(-1, 1, 64 * 64, dtype=torch.float32).view(64, 64)
    exact = a @ a.T
    return float(((a.cuda() @ a.cuda().T).cpu() - exact).abs().max() / exact.abs().max())


def main() -> None:
    """Say everything, the riskier the later."""
    say(
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
    )
    available = torch.cuda.is_available()
    say(cuda_available=available, cuda_error=None if available else cuda_error())
    if available:
        devices = [device(index) for index in range(torch.cuda.device_count())]
        say(devices=devices, arch_list=torch.cuda.get_arch_list())
        say(matmul_error=matmul_error())


if __name__ == "__main__":
    main()
