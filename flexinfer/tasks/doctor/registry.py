"""All checks, in the order in which they run and are shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flexinfer.errors import UsageError
from flexinfer.tasks.doctor.checks import (
    binaries,
    compilers,
    device,
    fa4,
    hub,
    memory,
    packages,
    python,
    variables,
    version,
)
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.report import Finding


@dataclass(frozen=True)
class Check:
    """One question; `needs` names checks without which it cannot be asked, all of them earlier."""

    name: str
    category: str
    needs: tuple[str, ...]
    run: Callable[[Context], Finding]
    about: str


def list_checks() -> tuple[Check, ...]:
    """Return every check; categories are contiguous."""
    own = _check(
        "version",
        "Version",
        version.version,
        "which flexinfer looks at the machine, and for which --mode",
    )
    return (own, *_machine(), *_packages(), *_kernels(), *_model(), *_hub(), *_variables())


def select(names: Iterable[str]) -> tuple[Check, ...]:
    """Return the named checks and what they need, all where none is named; raises UsageError."""
    every = {check.name: check for check in list_checks()}
    wanted: set[str] = set()
    queue = list(names) or list(every)
    while queue:
        name = queue.pop()
        if name not in every:
            near = difflib.get_close_matches(name, every, n=1, cutoff=0.0)[0]
            hint = f"did you mean {near}? all: flexinfer doctor --list-checks"
            raise UsageError(f"--check {name!r} is not known", hint=hint)
        if name not in wanted:
            wanted.add(name)
            queue.extend(every[name].needs)
    return tuple(check for check in every.values() if check.name in wanted)


def _check(
    name: str, category: str, run: Callable[[Context], Finding], about: str, *needs: str
) -> Check:
    """Build a check, its function last but one so that the tables below read well."""
    return Check(name, category, needs, run, about)


def _machine() -> tuple[Check, ...]:
    """Return checks of Python, torch and the device."""
    return (
        _check("python", "Python", python.python, "3.11 or newer"),
        _check("headers", "Python", python.headers, "Python.h, for compiled kernels"),
        _check("torch", "Device", python.torch, "imports, 2.11 or newer"),
        _check("driver", "Device", python.driver, "NVIDIA driver against torch's CUDA", "torch"),
        _check("device", "Device", device.device, "a real product on it", "torch"),
        _check("cuda-graphs", "Device", device.cuda_graphs, "capture and replay", "device"),
    )


def _packages() -> tuple[Check, ...]:
    """Return checks of Python packages."""
    here, group = packages, "Packages"
    return (
        _check("transformers", group, here.transformers, "against the model asked for"),
        _check("triton", group, binaries.triton, "against torch", "torch"),
        _check("peft", group, here.plain(here.PEFT), "imports", "torch"),
        _check("bitsandbytes", group, binaries.bitsandbytes, "a real 4-bit product", "torch"),
        _check("flash-attn-4", group, fa4.flash_attention, "against device", "torch"),
        _check("accelerate", group, here.plain(here.ACCELERATE), "imports", "torch"),
        _check("datasets", group, here.plain(here.DATASETS), "imports", "torch"),
        _check("trl", group, here.plain(here.TRL), "its GRPO trainer imports", "torch"),
        _check("vllm", group, here.vllm, "against the range that TRL supports"),
    )


def _kernels() -> tuple[Check, ...]:
    """Return checks of what compiles kernels."""
    group, needs = "Kernels", ("torch", "compiler")
    flex = (
        _check(f"flex-{dim}", group, compilers.flex(dim), "compiled over pages", *needs)
        for dim in compilers.HEAD_DIMS
    )
    return _check("compiler", group, compilers.compiler, "builds a C++ program"), *flex


def _model() -> tuple[Check, ...]:
    """Return checks of the model asked for."""
    return (
        _check("model", "Model", memory.model, "its family is supported"),
        _check("memory", "Model", memory.memory, "what fits in --mode", "model", "torch"),
    )


def _hub() -> tuple[Check, ...]:
    """Return checks of the way to weights."""
    return (
        _check("hub", "Hub", hub.hub, "reachable, and offers the model"),
        _check("token", "Hub", hub.token, "present or not; never shown"),
        _check("cache", "Hub", hub.cache, "models on this machine"),
        _check("disk", "Hub", hub.disk, "room for the model"),
    )


def _variables() -> tuple[Check, ...]:
    """Return checks of environment variables."""
    here, group = variables, "Variables"
    return (
        _check("env-allocator", group, here.allocator, "expandable segments"),
        _check("env-caching", group, here.caching, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        _check("env-tf32", group, here.tf32, "fp32 products rounded to TF32"),
        _check("env-launch-blocking", group, here.launch_blocking, "CUDA_LAUNCH_BLOCKING"),
        _check("env-compile", group, here.compile_disabled, "torch.compile switched off"),
        _check("env-inductor", group, here.inductor, "TORCHINDUCTOR_*"),
        _check("env-triton", group, here.triton_interpret, "TRITON_INTERPRET"),
        _check("env-offline", group, here.offline, "HF_HUB_OFFLINE"),
    )
