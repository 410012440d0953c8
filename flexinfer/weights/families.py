"""Which checkpoints flexinfer can run: config.json -> text config and Hugging Face class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flexinfer.core.imports import large_imports
from flexinfer.errors import EnvironmentUnfit, UsageError, one_line
from flexinfer.weights.nf4.config import stored_scheme

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

OLDEST_TRANSFORMERS = (5, 5, 2)
FAMILIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
        "llama": ("LlamaConfig", "LlamaForCausalLM"),
        "gemma4_text": ("Gemma4TextConfig", "Gemma4ForCausalLM"),
    }
)
"""model_type of a text model -> its config and its model class in transformers."""
SUPPORTED = "supported: Qwen3, Llama (and relatives such as SmolLM2), Gemma-4"


def check_transformers(found: str | None = None) -> None:
    """Raise EnvironmentUnfit where transformers (`found`, else the installed one) is too old."""
    from packaging.version import Version

    try:
        found = version("transformers") if found is None else found
    except PackageNotFoundError:
        raise EnvironmentUnfit(
            "transformers is not installed", hint="pip install transformers"
        ) from None
    if Version(found).release < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise EnvironmentUnfit(
            f"transformers {found} is too old: flexinfer needs {oldest} or newer",
            hint="pip install --upgrade transformers",
        )


def text_config(raw: Mapping[str, Any], name: str) -> PreTrainedConfig:
    """Build the text model's config from a config.json; a multimodal one gives its text part.

    Raises UsageError for a family that flexinfer does not run and for a config that makes no
    sense, EnvironmentUnfit for a checkpoint quantised in a way that is not read.
    """
    text = _text_part(raw, name)
    refuse(text, name)
    stored_scheme(raw, name)
    text.pop("quantization_config", None)
    config_class = _class(FAMILIES[text["model_type"]][0])
    try:
        config: PreTrainedConfig = config_class.from_dict(text)
    except Exception as error:
        line = one_line(error)
        raise UsageError(f"{name}: config.json describes no model: {line}") from error
    return config


def causal_lm(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the Hugging Face *ForCausalLM class of a config that `text_config` built."""
    found: type[PreTrainedModel] = _class(FAMILIES[config.model_type][1])
    return found


def check_family(raw: Mapping[str, Any], name: str) -> None:
    """Raise UsageError for a config.json whose text model flexinfer does not run."""
    refuse(_text_part(raw, name), name)


def refuse(text: Mapping[str, Any], name: str) -> None:
    """Raise UsageError by name for mixtures of experts and for families without a walker."""
    family = text.get("model_type")
    if not isinstance(family, str):
        raise UsageError(
            f"{name}: config.json names no model_type", hint="download the checkpoint again"
        )
    experts = text.get("enable_moe_block") or text.get("num_experts")
    if (experts and family in FAMILIES) or "moe" in family.lower():
        raise UsageError(
            f"{name} is a mixture of experts ({family}), which flexinfer does not run",
            hint=SUPPORTED,
        )
    if family not in FAMILIES:
        raise UsageError(
            f"{name} is of the family {family}, which flexinfer does not run", hint=SUPPORTED
        )


def _text_part(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of the text model's part of a config.json, with the outer dtype and tying."""
    if raw.get("model_type") != "gemma4":
        return dict(raw)
    inner = raw.get("text_config")
    if not isinstance(inner, Mapping):
        raise UsageError(f"{name}: config.json has no text_config")
    outer = {key: raw[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in raw}
    return {"model_type": "gemma4_text"} | outer | dict(inner)


def _class(name: str) -> Any:
    """Return a class of transformers, which imports what it needs when it is asked for it."""
    with large_imports():
        import transformers

        return getattr(transformers, name)
