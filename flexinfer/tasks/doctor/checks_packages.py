"""Checks of the packages that are used: transformers, PEFT, TRL and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.packages import (
    Package,
    absent,
    broken,
    examine,
    is_there,
    version,
)
from flexinfer.tasks.doctor.report import Finding, Mode, fail, ok, skip, unfit, warn
from flexinfer.tasks.doctor.versions import Release, bounds, dotted, older, release, within

OLDEST_TRANSFORMERS: Release = (5, 5, 2)
EVERY: frozenset[Mode] = frozenset({"bf16", "lora", "4bit", "grpo"})
GRPO: frozenset[Mode] = frozenset({"grpo"})
CLASSES = {
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
}
"""Text model_type -> the class that is trained, which must import."""

TRANSFORMERS = Package(
    distribution="transformers",
    module="transformers",
    minimum=OLDEST_TRANSFORMERS,
    modes=EVERY,
    install=f"transformers>={dotted(OLDEST_TRANSFORMERS)}",
    purpose="models and tokenizers",
)
PEFT = Package(
    distribution="peft",
    module="peft",
    minimum=(0, 18),
    modes=frozenset({"lora", "grpo"}),
    install="peft>=0.18",
    purpose="LoRA adapters",
    names=("PeftModel",),
)
TRL = Package(
    distribution="trl",
    module="trl",
    minimum=(1, 0),
    modes=GRPO,
    install="flexinfer[grpo]",
    purpose="the GRPO trainer",
    names=("GRPOTrainer",),
)
ACCELERATE = Package(
    distribution="accelerate",
    module="accelerate",
    minimum=(1, 4),
    modes=GRPO,
    install="flexinfer[grpo]",
    purpose="the trainer's device placement",
)
DATASETS = Package(
    distribution="datasets",
    module="datasets",
    minimum=(3,),
    modes=GRPO,
    install="flexinfer[grpo]",
    purpose="prompts for training",
)
BITSANDBYTES = Package(
    distribution="bitsandbytes",
    module="bitsandbytes",
    minimum=(0, 48),
    modes=frozenset({"4bit"}),
    install="flexinfer[quant]",
    purpose="4-bit weights",
)
VLLM = Package(
    distribution="vllm",
    module="vllm",
    minimum=(0, 22),
    modes=frozenset(),
    install="flexinfer[vllm]",
    purpose="a back end to compare with",
)
KNOWN_VLLM: Mapping[Release, str] = {(1, 16): ">=0.22.0,<=0.31.0"}
"""TRL release -> the vLLM it supports, where its metadata does not say."""

NF4_ERROR, NF4_DISTANCE = 0.02, 0.15
"""Relative limits: of the product in bf16; of NF4 from the weight (about 0.09 for a Gaussian)."""


def plain(package: Package) -> Callable[[Context], Finding]:
    """Return the check of a package that is only imported."""
    return lambda context: examine(context, package)


def transformers(context: Context) -> Finding:
    """Check transformers against the model asked for: version, and its class imports."""
    if not is_there(context, TRANSFORMERS):
        return absent(context, TRANSFORMERS)
    target = context.target
    # Without torch the class cannot be imported, which the torch line already says.
    name = CLASSES.get(target.family) if context.torch.version is not None else None
    probe = context.imported("transformers", *([name] if name else []))
    found = version(context, TRANSFORMERS, probe)
    if release(found) and older(found, TRANSFORMERS.minimum):
        return fail(
            f"{found}, for {target.label}", _too_old(found, target.family), TRANSFORMERS.fix
        )
    if probe.error is not None:
        return broken(context, TRANSFORMERS, found, probe.error)
    return ok(f"{found}, {name} for {target.label}" if name else found)


def _too_old(found: str, family: str) -> str:
    """Say what is wrong with a transformers before 5.5.2."""
    if family.startswith("gemma4") and older(found, (5, 5)):
        return "Gemma-4 came with 5.5.0, and is right in training from 5.5.2 on"
    if family.startswith("gemma4"):
        return "5.5.0 and 5.5.1 compute Gemma-4's shared keys and values wrongly in training"
    return f"flexinfer needs {dotted(OLDEST_TRANSFORMERS)} or newer"


def bitsandbytes(context: Context) -> Finding:
    """Quantise a small weight to NF4 and multiply by it."""
    if not is_there(context, BITSANDBYTES):
        return absent(context, BITSANDBYTES)
    probe = context.probe("nf4", timeout_s=180.0)
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
        return unfit(context.mode == "4bit", found, why, BITSANDBYTES.fix)
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


def vllm(context: Context) -> Finding:
    """Check vLLM against the range that the installed TRL supports."""
    here = context.environment
    if not is_there(context, VLLM):
        return absent(context, VLLM)
    found = here.version_of("vllm") or version(context, VLLM, context.imported("vllm"))
    if not is_there(context, TRL):
        return ok(f"{found}, without TRL")
    trl = here.version_of("trl") or version(context, TRL, context.imported("trl"))
    asked = bounds(here.requires_of("trl"), "vllm") or KNOWN_VLLM.get(release(trl)[:2], "")
    pair = f"vLLM {found} beside TRL {trl}"
    if within(found, asked):
        return ok(pair, f"TRL asks for vllm{asked}" if asked else "the range is not known")
    why = f"TRL {trl} supports vllm{asked} and imports it where it is installed"
    return unfit(context.mode == "grpo", pair, why, f'pip install "vllm{asked}", or uninstall vllm')
