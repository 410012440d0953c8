"""Checks of packages that carry or build machine code: bitsandbytes and Triton, tried for real."""

from __future__ import annotations

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.packages import Package, absent, broken, is_there, version
from flexinfer.tasks.doctor.facts.versions import bounds, dotted, older, within
from flexinfer.tasks.doctor.report import Finding, fail, ok, skip, unfit, warn

BITSANDBYTES = Package(
    distribution="bitsandbytes",
    module="bitsandbytes",
    minimum=(0, 48),
    modes=frozenset({"4bit"}),
    purpose="4-bit weights",
)
NF4_ERROR, NF4_DISTANCE = 0.02, 0.15
"""Relative limits: of the product in bf16; of NF4 from the weight (about 0.09 for a Gaussian)."""


def bitsandbytes(context: Context) -> Finding:
    """Quantise a small weight to NF4 and multiply by it."""
    if not is_there(context, BITSANDBYTES):
        return absent(context, BITSANDBYTES)
    probe = context.device_probe("nf4", timeout_s=180.0)
    found = version(context, BITSANDBYTES, probe)
    if probe.error is not None:
        return broken(context, BITSANDBYTES, found, probe.error)
    facts = probe.facts
    if not (facts["error"] <= NF4_ERROR and facts["distance"] <= NF4_DISTANCE):
        wrong = f"a 4-bit product is wrong (relative error {facts['error']:.2g}"
        wrong += f", weights off by {facts['distance']:.2g})"
        return broken(context, BITSANDBYTES, found, wrong)
    if older(found, BITSANDBYTES.minimum):
        why = f"flexinfer needs {dotted(BITSANDBYTES.minimum)} or newer"
        return unfit(BITSANDBYTES.needed(context.mode), found, why, BITSANDBYTES.fix)
    return ok(f"{found}, 4-bit product right on {facts['device']} (error {facts['error']:.1g})")


def triton(context: Context) -> Finding:
    """Check Triton, which compiles kernels for CUDA, against what torch asks for."""
    here, needed = context.environment, bool(context.torch.devices)
    if here.version_of("triton") is None and not here.findable("triton"):
        why = "kernels for CUDA are compiled with it"
        fix = "pip install triton, in the version that torch asks for"
        return fail("not installed", why, fix) if needed else skip("not installed", why)
    probe = context.imported("triton")
    found = str(probe.facts.get("version") or here.version_of("triton") or "unknown version")
    if probe.error is not None:
        why = "kernels for CUDA are compiled with it"
        fix = "reinstall the version that torch asks for: pip install --force-reinstall torch"
        return unfit(needed, f"{found}: {probe.error}", why, fix)
    asked = bounds(here.requires_of("torch"), "triton")
    if asked and not within(found, asked):
        return warn(
            found,
            f"torch {context.torch.version} asks for triton{asked}",
            f'pip install "triton{asked}"',
        )
    return ok(found)
