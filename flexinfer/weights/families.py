"""Which checkpoints flexinfer can run: config.json -> text config and Hugging Face class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flexinfer.errors import EnvironmentUnfit, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

OLDEST_TRANSFORMERS = (5, 5, 2)
FAMILIES = {"qwen3": "Qwen3", "llama": "Llama", "gemma4_text": "Gemma4Text"}
SUPPORTED = "Qwen3, Llama (and relatives such as SmolLM2), Gemma-4 text"


def check_transformers(found: str | None = None) -> None:
    """Raise EnvironmentUnfit where transformers (`found`, else the installed one) is too old."""
    found = version("transformers") if found is None else found
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if numbers < OLDEST_TRANSFORMERS:
        needed = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise EnvironmentUnfit(
            f"transformers {found} is too old: flexinfer needs {needed} or newer",
            hint="pip install -U transformers",
        )


def text_config(raw: Mapping[str, Any], name: str) -> PreTrainedConfig:
    """Build the text model's config from a config.json; a multimodal one gives its text part.

    Raises UsageError for a family that flexinfer does not run, and for a broken config.
    """
    text = dict(raw.get("text_config") or {}) if raw.get("model_type") == "gemma4" else dict(raw)
    if raw.get("model_type") == "gemma4":
        text = {"model_type": "gemma4_text", "dtype": raw.get("dtype")} | text
        text.setdefault("tie_word_embeddings", raw.get("tie_word_embeddings", True))
    _refuse(text, name)
    import transformers

    config_class = getattr(transformers, FAMILIES[text["model_type"]] + "Config")
    try:
        config: PreTrainedConfig = config_class.from_dict(text)
    except Exception as error:
        raise UsageError(
            f"{name}: config.json does not describe a model: {_line(error)}"
        ) from error
    return config


def causal_lm(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the Hugging Face *ForCausalLM class of a config that `text_config` built."""
    import transformers

    family = FAMILIES[config.model_type].removesuffix("Text")
    model_class: type[PreTrainedModel] = getattr(transformers, family + "ForCausalLM")
    return model_class


def _refuse(text: Mapping[str, Any], name: str) -> None:
    """Raise UsageError by name for mixture-of-experts, quantised and unknown families."""
    family = text.get("model_type")
    if not isinstance(family, str):
        raise UsageError(f"{name}: config.json names no model_type")
    if text.get("enable_moe_block") or "moe" in family.lower() or text.get("num_experts"):
        raise UsageError(
            f"{name} is a mixture of experts ({family}), which flexinfer does not run",
            hint=f"supported: {SUPPORTED}",
        )
    if family not in FAMILIES:
        raise UsageError(
            f"{name} is of the family {family}, which flexinfer does not run",
            hint=f"supported: {SUPPORTED}",
        )


def _line(error: Exception) -> str:
    """Squeeze an exception's message into one line."""
    return " ".join(str(error).split())
