"""Back ends over a trainer's own module: what it has learned is what is rolled out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flexinfer.backends.base.options import RolloutOptions, check_lora_mode
from flexinfer.backends.choose import check_backend
from flexinfer.config import EngineConfig, LoraMode, Report, quiet
from flexinfer.errors import UsageError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from flexinfer.backends.base.protocol import Backend
    from flexinfer.backends.flex import FlexBackend
    from flexinfer.weights.load import LoadedModel


def open_live(
    name: str,
    loaded: LoadedModel,
    model: nn.Module,
    config: EngineConfig,
    options: RolloutOptions | None = None,
    lora_mode: LoraMode | None = None,
    report: Report = quiet,
) -> Backend:
    """Open back end `name` over `model`: `loaded.module` itself, or the PeftModel around it.

    hf and hf-cb roll out what the module holds when `generate` is called, flex and vllm what it
    held at the last `refresh`: vllm nothing of it before. Raises UsageError for a module or options
    that the back end cannot serve, EnvironmentUnfit where its package is missing or broken.
    """
    check_backend(name, "--rollout")
    options = options or RolloutOptions()
    options.check(name)
    module = _base(model)
    if module is not loaded.module:
        raise UsageError(
            "the model that is trained is not the one that was loaded",
            hint="hand in loaded.module, or what get_peft_model made of it",
        )
    check_lora_mode(name, lora_mode)
    if name == "flex":
        return _flex(loaded, model, config, lora_mode, report)
    if name == "vllm":
        from flexinfer.backends.vllm.live import open_vllm

        return open_vllm(loaded, module, model, config, report)
    if name == "hf":
        from flexinfer.backends.huggingface.hf import HfBackend

        return HfBackend(loaded, module, config, options, report)
    from flexinfer.backends.huggingface.hf_cb import HfCbBackend

    return HfCbBackend(loaded, module, config, options, report)


def _flex(
    loaded: LoadedModel,
    model: nn.Module,
    config: EngineConfig,
    lora_mode: LoraMode | None,
    report: Report,
) -> FlexBackend:
    """Build an engine whose adapter, if any, is read from the trainer's module."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    from flexinfer.backends.flex import FlexBackend
    from flexinfer.engine.engine import Engine
    from flexinfer.weights.adapters.choice import AdapterChoice

    adapted = any(isinstance(child, BaseTunerLayer) for child in model.modules())
    adapter = AdapterChoice(model, lora_mode) if adapted else None
    return FlexBackend(Engine(replace(loaded, adapter=adapter), config, report), live=True)


def _base(model: nn.Module) -> PreTrainedModel:
    """Return the Hugging Face module in a PeftModel; raises UsageError for learned prompts."""
    from peft import PeftModel
    from transformers import PreTrainedModel

    base = model
    if isinstance(model, PeftModel):
        if model.active_peft_config.is_prompt_learning:
            raise UsageError("learned prompts cannot be rolled out", hint="train a LoRA adapter")
        base = model.get_base_model()
    if not isinstance(base, PreTrainedModel):
        raise UsageError(f"a {type(base).__name__} is no Hugging Face model")
    return base
