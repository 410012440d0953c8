"""Checks of environment variables that change what runs, each with the harm it does."""

from __future__ import annotations

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.hub_cache import offline_variable
from flexinfer.tasks.doctor.report import Finding, ok, unfit, warn

UNSET = ok("not set")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
UNCOMPILED = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
TF32 = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
HARMLESS = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FX_GRAPH_CACHE")
INDUCTOR = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "every start compiles everything again",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "compiling takes minutes, for kernels that are already tuned",
    "TORCHINDUCTOR_COMPILE_THREADS": "compiling takes longer with few threads",
    "TORCHINDUCTOR_CPP_WRAPPER": "untested here",
}


def allocator(context: Context) -> Finding:
    """Look for expandable segments, which memory pools that sleep cannot live with."""
    for variable in ALLOCATOR:
        value = context.environment.variables.get(variable, "")
        if "expandable_segments:true" in value.replace(" ", "").lower():
            vllm = context.environment.version_of("vllm") or context.environment.findable("vllm")
            why = "expandable segments and memory that is put to sleep (vLLM's sleep mode, standby)"
            return unfit(
                context.mode == "grpo" and bool(vllm),
                f"{variable}={value}",
                f"{why} exclude each other",
                f"unset {variable}, or set expandable_segments:False",
            )
    return _plain(context, ALLOCATOR)


def caching(context: Context) -> Finding:
    """Look for an allocator without a cache, with which no CUDA graph has memory of its own."""
    if UNCACHED not in context.environment.variables:  # torch asks for no more: 0 is set, too
        return UNSET
    why = "every tensor waits for the driver, and CUDA graphs cannot keep their memory"
    return unfit(bool(context.torch.devices), f"{UNCACHED} is set", why, f"unset {UNCACHED}")


def tf32(context: Context) -> Finding:
    """Look for overrides of how fp32 products are rounded, which settings in Python cannot lift."""
    here = context.environment.variables
    name = next((name for name in TF32 if here.get(name, "0").strip() not in ("", "0")), None)
    if name is None:
        return _plain(context, TF32)
    why = "fp32 products keep 10 bits of mantissa: fp32 does not match the Hugging Face model"
    return warn(f"{name}={here[name]}", why, f"unset {name}")


def launch_blocking(context: Context) -> Finding:
    """Look for launches that wait for their kernel."""
    if not context.environment.switched_on("CUDA_LAUNCH_BLOCKING"):
        return UNSET
    why = "every kernel is waited for: no graph capture, several times slower"
    return warn("CUDA_LAUNCH_BLOCKING=1", why, "unset CUDA_LAUNCH_BLOCKING")


def compile_disabled(context: Context) -> Finding:
    """Look for a switched-off torch.compile: flex_attention then ignores its pages."""
    for variable in UNCOMPILED:
        if context.environment.switched_on(variable):
            why = "un-compiled flex_attention ignores the page list: wrong text without an error"
            return unfit(
                bool(context.torch.devices), f"{variable} is set", why, f"unset {variable}"
            )
    return UNSET


def inductor(context: Context) -> Finding:
    """Look for settings of torch's compiler."""
    here = context.environment.variables
    names = [n for n in here if n.startswith("TORCHINDUCTOR_") and n not in HARMLESS]
    if not names:
        return _plain(context, HARMLESS)
    why = "; ".join(INDUCTOR.get(name, f"{name} changes generated kernels") for name in names)
    return warn(", ".join(f"{n}={here[n]}" for n in names), why, f"unset {' '.join(names)}")


def triton_interpret(context: Context) -> Finding:
    """Look for Triton's interpreter, which runs kernels in Python."""
    if not context.environment.switched_on("TRITON_INTERPRET"):
        return UNSET
    why = "Triton kernels run in Python, thousands of times slower"
    return unfit(bool(context.torch.devices), "TRITON_INTERPRET=1", why, "unset TRITON_INTERPRET")


def offline(context: Context) -> Finding:
    """Look for a hub library that is kept off the network."""
    variable = offline_variable(context.environment)
    if variable is None:
        return UNSET
    if context.target.is_local:
        return ok(f"{variable} is set", f"{context.target.label} is on this machine")
    why = f"{context.target.label} is not on this machine and cannot be downloaded"
    return warn(f"{variable} is set", why, f"unset {variable}")


def _plain(context: Context, names: tuple[str, ...]) -> Finding:
    """Name what is set and does no harm."""
    here = context.environment.variables
    found = ", ".join(f"{name}={here[name]}" for name in names if name in here)
    return ok(found) if found else UNSET
