"""Check of flash-attn-4 (import name flash_attn.cute), which can only ever speed prefill up."""

from __future__ import annotations

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.packages import Package, absent, broken, is_there, version
from flexinfer.tasks.doctor.facts.shapes import shapes
from flexinfer.tasks.doctor.facts.versions import beta, older
from flexinfer.tasks.doctor.report import Finding, ok, warn

FA4 = Package(
    distribution="flash-attn-4",
    module="flash_attn.cute",
    minimum=(),
    modes=frozenset(),
    purpose="prefill on Hopper and newer",
    option="--fa4-prefill",
)
HOPPER = (9, 0)
GQA_FIX = 11
"""The beta that mended GQA ratios which do not divide 128 on sm_100, and brought (256, 256)."""

NEW_SIGNATURE = 17
"""The beta from which flex's BACKEND="FLASH" of torch 2.11 no longer fits."""

ERROR_LIMIT = 0.05
"""Absolute, bf16 against fp32 on unit Gaussian inputs."""


def flash_attention(context: Context) -> Finding:
    """Import it, judge its version against torch and the device, and run it where it can run."""
    if not is_there(context, FA4):
        return absent(context, FA4)
    probe = context.imported(FA4.module)
    if probe.lacks("flash_attn.cute"):
        return absent(context, FA4)
    found = context.environment.version_of(FA4.distribution) or version(context, FA4, probe)
    if probe.error is not None:
        return broken(context, FA4, found, probe.error)
    devices = context.torch.devices
    if not devices:
        return ok(f"{found}, importable", "no CUDA device to run it on")
    if devices[0].capability < HOPPER:
        why = f"prefill uses flex: FA4 has no use here on {devices[0].architecture}"
        return ok(f"{found}, importable", why)
    return _run(context, found, devices[0].capability)


def _run(context: Context, found: str, capability: tuple[int, int]) -> Finding:
    """Run the model's head dims that the kernel has, and warn of versions known to be wrong."""
    wanted = _model_head_dims(context)
    able = [dim for dim in wanted if supports(capability, dim, found)]
    text = f"{found}, head dims {', '.join(map(str, able)) or 'none'} of {context.target.label}"
    if able:
        probe = context.device_probe("fa4", *map(str, able), timeout_s=240.0)
        bad = [row.get("failed") for row in probe.rows if not row.get("error", 1.0) <= ERROR_LIMIT]
        if probe.error is not None or bad:
            reason = probe.error or bad[0] or "wrong result"
            return broken(context, FA4, found, str(reason))
    number = beta(found)
    if number is not None and capability >= (10, 0) and number < GQA_FIX:
        why = f"before beta {GQA_FIX}, GQA ratios that do not divide 128 crash on sm_100"
        return warn(text, why, FA4.fix)
    if (number is None or number >= NEW_SIGNATURE) and older(context.torch.version or "", (2, 12)):
        return ok(text, "flex's FLASH back end of this torch does not fit it; called directly")
    return ok(text)


def supports(capability: tuple[int, int], head_dim: int, found: str) -> bool:
    """Whether FA4's forward kernel has this head dim: sm_90 8-256, sm_100 8-128 and 256."""
    if capability[0] == 9:
        return 8 <= head_dim <= 256
    wide = head_dim == 256 and (beta(found) or GQA_FIX) >= GQA_FIX
    return capability[0] in (10, 11) and (8 <= head_dim <= 128 or wide)


def _model_head_dims(context: Context) -> tuple[int, ...]:
    """Return the head dims of the model asked for; 128 where they are unknown."""
    config = context.target.config
    return shapes(config).head_dims if config else (128,)
