"""Checks of the model asked for: whether flexinfer runs it, and whether it fits."""

from __future__ import annotations

from flexinfer.core.sizes import human
from flexinfer.errors import UsageError
from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.memory_plan import BATCH, MemoryPlan, plan, weight_bytes
from flexinfer.tasks.doctor.facts.shapes import shapes
from flexinfer.tasks.doctor.report import Finding, fail, ok, skip, unfit, warn
from flexinfer.weights.families import refuse
from flexinfer.weights.names import TINY

SMALLER = f"a smaller model (--model {TINY} fits anywhere)"
AGAIN = "download the checkpoint again"


def model(context: Context) -> Finding:
    """Check that the model asked for is of a family that flexinfer runs."""
    target = context.target
    if target.fault is not None:
        cure = target.fault.hint or "give an alias, or a folder that holds a whole checkpoint"
        return fail(target.label, target.fault.message, cure)
    if target.config is None:
        return skip(f"{target.label}: {target.trouble}", "its shape is known once it is loaded")
    try:
        refuse(target.config, target.label)
        shape = shapes(target.config)
    except UsageError as error:
        return fail(target.label, error.message, error.hint or AGAIN)
    except KeyError as error:
        return fail(target.label, f"its config.json lacks {error}", AGAIN)
    except (TypeError, ValueError, ArithmeticError) as error:
        return fail(target.label, f"its config.json makes no sense: {error}", AGAIN)
    dims = ", ".join(map(str, shape.head_dims))
    size = f"{shape.parameters / 1e9:.2f} B parameters" if shape.parameters >= 1e7 else "tiny"
    return ok(f"{target.label}: {target.family}, {size}, {shape.layers} layers, head_dim {dims}")


def memory(context: Context) -> Finding:
    """Plan weights, cache and working space of the mode asked for against free memory."""
    target, devices = context.target, context.torch.devices
    if target.config is None:
        return skip(f"{target.label}: {target.trouble}", "its shape is known once it is loaded")
    shape, element_bytes = shapes(target.config), 2 if devices else 4
    planned = plan(shape, context.mode, element_bytes)
    free = devices[0].free if devices else context.environment.host_memory()
    weights = weight_bytes(shape, context.mode, element_bytes)
    parts = {
        "weights": weights,
        "KV cache": planned.per_sequence * BATCH,
        "working space": planned.fixed - weights,
    }
    detail = ", ".join(f"{human(count)} {name}" for name, count in parts.items())
    dtype = "bfloat16" if devices else "float32 (a CPU's default dtype)"
    why = f"estimate for --mode {context.mode} in {dtype}: {detail}"
    return _verdict(context, planned, free, why)


def _verdict(context: Context, planned: MemoryPlan, free: float, why: str) -> Finding:
    """Say whether the workload fits, or how much of it does."""
    work = f"{BATCH} x {planned.tokens} tokens"
    figures = f"{work} need {human(planned.needed())}, {human(free)} available"
    if planned.needed() <= free:
        return ok(f"fits: {figures}", why)
    fits = planned.largest_batch(free)
    if fits == 0:
        fewer_bits = "" if context.mode == "4bit" else "--load-in-4bit, "
        fix = f"free memory, {fewer_bits}or {SMALLER}"
        return unfit(context.target.asked, f"does not fit: {figures}", why, fix)
    return warn(
        f"fits in part: {fits} x {planned.tokens} tokens; {figures}",
        f"{why}; a larger batch waits its turn",
        f"--max-batch-size {fits}, or shorter sequences with --max-seq-length",
    )
