"""Check of flash-attn-4 (import name flash_attn.cute), which can only ever speed prefill up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexinfer.attention.choose_fa4 import (
    INSTALL,
    HeadShape,
    choose_for,
    fa4_obstacle,
    how_called,
    version_obstacle,
)
from flexinfer.engine.requests.limits import DEFAULT_MAX_SEQ_LENGTH
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.layer_shapes import SLIDING, layer_shapes
from flexinfer.tasks.doctor.facts.packages import Package, absent, broken, is_there, version
from flexinfer.tasks.doctor.report import Finding, ok, warn

FA4 = Package(
    distribution="flash-attn-4",
    module="flash_attn.cute",
    minimum=(),
    modes=frozenset(),
    purpose="prefill on Hopper and newer",
)
ERROR_LIMIT = 0.05
"""Absolute, bf16 against fp32 on unit Gaussian inputs."""

USUAL = (HeadShape(128, 4),)
"""Stands in for a model whose config is not at hand."""


def flash_attention(context: Context) -> Finding:
    """Import it, let the engine's own decision speak, and run it where the engine could use it."""
    if not is_there(context, FA4):
        return absent(context, FA4)
    probe = context.imported(FA4.module)
    if probe.lacks("flash_attn.cute"):
        return absent(context, FA4)
    found = context.environment.version_of(FA4.distribution) or version(context, FA4, probe)
    if probe.error is not None:
        return broken(context, FA4, found, probe.error)
    devices = context.torch.devices
    capability = devices[0].capability if devices else None
    heads = _heads(context)
    text = f"{found}, importable"
    for shape in heads:
        if why := fa4_obstacle(capability, *shape, found):
            if capability is not None and why == version_obstacle(capability, *shape, found):
                return warn(text, why, INSTALL)
            return ok(text, f"prefill does not use it: {why}")
    return _run(context, found, heads, capability)


def _run(
    context: Context,
    found: str,
    heads: tuple[HeadShape, ...],
    capability: tuple[int, int] | None,
) -> Finding:
    """Run the model's head shapes, and say what auto does with it and how it is called."""
    dims = ", ".join(str(shape.head_dim) for shape in heads)
    text = f"{found}, head dims {dims} of {context.target.label}"
    asked = [f"{shape.head_dim}x{shape.ratio}" for shape in heads]
    probe = context.device_probe("fa4", *asked, timeout_s=240.0)
    bad = [row.get("failed") for row in probe.rows if not row.get("error", 1.0) <= ERROR_LIMIT]
    if probe.error is not None or bad:
        return broken(context, FA4, found, str(probe.error or bad[0] or "wrong result"))
    torch = context.torch.version or ""
    windows = _has_windows(context.target.config or {})
    auto = choose_for(None, capability, heads, found, torch, DEFAULT_MAX_SEQ_LENGTH, windows)
    if auto.use:
        return ok(text, f"prefill uses it: {auto.reason}")
    way = how_called(found, torch)
    return ok(text, f"prefill uses it with --fa4-prefill ({way}); auto: {auto.reason}")


def _has_windows(config: Mapping[str, Any]) -> bool:
    """Return whether some layers see but a window."""
    if (kinds := config.get("layer_types")) is not None:
        return SLIDING in kinds
    full = config.get("max_window_layers", 0)
    return bool(config.get("use_sliding_window")) and full < config["num_hidden_layers"]


def _heads(context: Context) -> tuple[HeadShape, ...]:
    """Return the head shapes of the model asked for; the usual one where they are unknown."""
    config = context.target.config
    if not config:
        return USUAL
    owning = [layer for layer in layer_shapes(config) if layer.kv]
    return tuple(dict.fromkeys(HeadShape(x.head_dim, x.q // x.kv) for x in owning))
