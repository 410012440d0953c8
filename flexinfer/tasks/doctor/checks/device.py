"""Checks of the device: what will run, and whether CUDA graphs work on it."""

from __future__ import annotations

from flexinfer.core.sizes import human
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.torch_facts import CudaDevice
from flexinfer.tasks.doctor.report import Finding, fail, ok, skip, warn

MATMUL_LIMIT = 1e-2
"""Relative; a TF32 product of 64 terms stays well below, a broken one does not."""

GRAPH_LIMIT = 1e-2
HIDDEN = ("", "-1")


def device(context: Context) -> Finding:
    """Check the first CUDA device with a real product, or describe the CPU where there is none."""
    facts = context.torch
    if facts.error is not None:
        return fail(
            f"touching the devices: {facts.error}",
            "torch can be imported, but its CUDA part ends badly",
            "check the driver line; another program may have left the device in a bad state",
        )
    if not facts.devices:
        return _without_cuda(context)
    first = facts.devices[0]
    memory = f"{human(first.free)} of {human(first.total)} available"
    found = f"{first.name}, {first.architecture}, {memory}"
    if len(facts.devices) > 1:
        found += f" (the first of {len(facts.devices)}; flexinfer uses one)"
    if facts.matmul_error is None or not facts.matmul_error <= MATMUL_LIMIT:
        why = f"a small product came out wrong (relative error {facts.matmul_error})"
        return fail(found, why, "test the device's memory; try another torch build")
    return _capability(first, found)


def _capability(first: CudaDevice, found: str) -> Finding:
    """Judge the compute capability."""
    if first.capability < (7, 0):
        return fail(
            found, "Triton needs compute capability 7.0", "use a newer device or --device cpu"
        )
    if first.capability < (8, 0):
        return warn(found, "no bfloat16 in hardware before sm_80", "--dtype float16")
    return ok(found)


def _without_cuda(context: Context) -> Finding:
    """Describe the CPU; fail where there is a GPU that torch should have reached."""
    facts, environment = context.torch, context.environment
    available = environment.host_memory()
    memory = f"{human(available)} available"
    found = f"CPU, {environment.cores} cores, {facts.cpu_capability}, {memory}"
    visible = environment.variables.get("CUDA_VISIBLE_DEVICES")
    if facts.cuda_build and context.nvidia.devices:
        if visible is not None and visible.strip() in HIDDEN:
            why = f"CUDA_VISIBLE_DEVICES={visible!r} hides {context.nvidia.devices[0]}"
            return warn(found, why, "unset CUDA_VISIBLE_DEVICES")
        return fail(
            f"{context.nvidia.devices[0]}, but torch cannot use it: {facts.cuda_error}",
            "generation would run on the CPU",
            "see the driver line; --device cpu runs without the GPU",
        )
    return ok(found, "no CUDA device: dense attention, no CUDA graphs")


def cuda_graphs(context: Context) -> Finding:
    """Capture a product in a CUDA graph and replay it with other input."""
    if not context.torch.cuda:
        return skip("no CUDA device")
    probe = context.device_probe("graph", timeout_s=120.0)
    fix = "--no-cuda-graphs runs without them; unset CUDA_LAUNCH_BLOCKING; update torch"
    if probe.error is not None:
        return fail(probe.error, "decode runs inside CUDA graphs", fix)
    facts = probe.facts
    if not facts["error"] <= GRAPH_LIMIT:
        why = f"the replay did not see its new input (relative error {facts['error']:.2g})"
        return fail("capture and replay run", why, fix)
    return ok(f"captured and replayed, {facts['replay_us']:.0f} us a replay")
