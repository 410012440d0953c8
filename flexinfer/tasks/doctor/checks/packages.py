"""Checks of the packages around the model: transformers, PEFT, TRL and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.packages import (
    Package,
    absent,
    broken,
    examine,
    is_there,
    version,
)
from flexinfer.tasks.doctor.facts.versions import Release, bounds, dotted, older, release, within
from flexinfer.tasks.doctor.report import Finding, Mode, fail, ok, unfit

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
    purpose="models and tokenizers",
)
PEFT = Package(
    distribution="peft",
    module="peft",
    minimum=(0, 18),
    modes=frozenset({"lora", "grpo"}),
    purpose="LoRA adapters",
    names=("PeftModel",),
)
TRL = Package(
    distribution="trl",
    module="trl",
    minimum=(1, 16),
    modes=GRPO,
    purpose="the GRPO trainer",
    names=("GRPOTrainer",),
)
ACCELERATE = Package(
    distribution="accelerate",
    module="accelerate",
    minimum=(1, 4),
    modes=GRPO,
    purpose="the trainer's device placement",
)
DATASETS = Package(
    distribution="datasets",
    module="datasets",
    minimum=(3,),
    modes=GRPO,
    purpose="prompts for training",
)
VLLM = Package(
    distribution="vllm",
    module="vllm",
    minimum=(0, 22),
    modes=frozenset(),
    purpose="a back end to compare with",
)
KNOWN_VLLM: Mapping[Release, str] = {(1, 16): ">=0.22.0,<=0.31.0"}
"""TRL release -> the vLLM it supports, where its metadata does not say."""


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
    # The loader trusts the metadata, which a half-done upgrade leaves at odds with the module.
    for number in (found, context.environment.version_of("transformers") or found):
        if older(number, TRANSFORMERS.minimum):
            why = _too_old(number, target.family)
            return fail(f"{number}, for {target.label}", why, TRANSFORMERS.fix)
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
    return unfit(
        TRL.needed(context.mode), pair, why, f'pip install "vllm{asked}", or uninstall vllm'
    )
