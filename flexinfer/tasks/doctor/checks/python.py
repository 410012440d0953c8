"""Checks of Python and torch: versions, builds, headers."""

from __future__ import annotations

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.versions import Release, dotted, older, release
from flexinfer.tasks.doctor.report import Finding, fail, ok, skip, warn

OLDEST_PYTHON: Release = (3, 11)
OLDEST_TORCH: Release = (2, 11)
DRIVERS = {13: 580, 12: 525, 11: 450}
"""CUDA major version a torch is built for -> oldest NVIDIA driver that runs it."""


def python(context: Context) -> Finding:
    """Check the interpreter's version."""
    version = dotted(context.environment.python)
    if context.environment.python < OLDEST_PYTHON:
        wanted = dotted(OLDEST_PYTHON)
        return fail(version, f"flexinfer needs Python {wanted} or newer", f"install {wanted}")
    return ok(version, "tested on 3.11 and 3.12")


def headers(context: Context) -> Finding:
    """Check for Python.h, which torch.compile and Triton build their launchers against."""
    folder = context.environment.headers
    if (folder / "Python.h").is_file():
        return ok(str(folder))
    short = dotted(context.environment.python[:2])
    return warn(
        f"no Python.h in {folder}",
        "kernels that torch.compile and Triton build include it",
        f"install the headers, such as the package python{short}-dev",
    )


def torch(context: Context) -> Finding:
    """Check that torch is there, can be imported and is new enough."""
    facts, wanted = context.torch, dotted(OLDEST_TORCH)
    if facts.missing:
        return fail("not installed", "every command but doctor needs it", "pip install torch")
    if facts.version is None:
        return fail(
            f"cannot be imported: {facts.error}",
            "the installation is broken, or what it links against is missing",
            "pip install --force-reinstall torch, in a fresh environment",
        )
    build = f"{facts.version}, {build_name(facts.cuda_build, facts.hip_build)}"
    if older(facts.version, OLDEST_TORCH):
        why = f"flexinfer needs {wanted} or newer"
        return fail(build, why, f'pip install -U "torch>={wanted}"')
    if facts.hip_build:
        return warn(build, "ROCm is untested here", "use a CUDA or CPU build of torch")
    return ok(build)


def build_name(cuda: str | None, hip: str | None) -> str:
    """Say what torch was built for."""
    return f"built for CUDA {cuda}" if cuda else f"built for ROCm {hip}" if hip else "CPU build"


def driver(context: Context) -> Finding:
    """Check the NVIDIA driver against the CUDA version that torch was built for."""
    nvidia, build = context.nvidia, context.torch.cuda_build
    if nvidia.error is not None:
        fix = "reinstall the NVIDIA driver, or reboot after an update"
        why = "the driver is installed but does not answer"
        return warn(nvidia.error, why, fix) if context.torch.cuda else fail(nvidia.error, why, fix)
    if nvidia.driver is None:
        reached = bool(context.torch.devices)
        return skip("no nvidia-smi" if reached else "no NVIDIA driver here")
    found = f"{nvidia.driver}, torch {build_name(build, context.torch.hip_build)}"
    if build is None:
        return warn(
            found,
            f"this torch runs on the CPU although there is a {nvidia.devices[0]}",
            "install a CUDA build of torch (pytorch.org, Get Started)",
        )
    oldest = DRIVERS.get(release(build)[0], 0)
    if release(nvidia.driver)[0] < oldest:
        why = f"CUDA {build} needs driver {oldest} or newer"
        return fail(found, why, "update the driver, or install a torch built for an older CUDA")
    return ok(found)
