"""The families flexinfer knows, by the model_type of their configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from flexinfer.errors import UsageError
from flexinfer.models import gemma4_build, llama, qwen3
from flexinfer.models.decoder import Decoder
from flexinfer.models.source import ModuleSource, Source

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Source], Decoder]] = {
    "gemma4": gemma4_build.build,
    "gemma4_text": gemma4_build.build,
    "gemma4_unified": gemma4_build.build,
    "gemma4_unified_text": gemma4_build.build,
    "llama": llama.build,
    "qwen3": qwen3.build,
}


def build_decoder(
    module: PreTrainedModel, read: Callable[[nn.Module, str], Source] = ModuleSource
) -> Decoder:
    """Build the walker over the parameters of a causal language model, which is only read.

    A multimodal Gemma-4 is read at its language model. `read(module, root)` gives the tensors and
    leaves. Raise UsageError for an unknown model_type or for a variant that its family refuses.
    """
    config: dict[str, Any] = module.config.to_dict()
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise UsageError(
            f"model type {kind!r} is not supported",
            hint="supported: " + ", ".join(sorted(FAMILIES)),
        )
    if "text_config" in config:
        return FAMILIES[kind](config["text_config"], read(module, "model.language_model."))
    return FAMILIES[kind](config, read(module, "model."))
