"""Which options of PEFT's LoraConfig can be served exactly, and which are refused by name.

Read from adapter_config.json or from a live config; names and defaults as in peft 0.18 to 0.21.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flexinfer.errors import UsageError

HONOURED = frozenset(
    {
        "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias",
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
        "init_lora_weights",
    }
)  # fmt: skip
"""Options that change the forward, and that are followed."""

HARMLESS = frozenset(
    {
        "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
        "inference_mode", "lora_dropout", "megatron_core", "ensure_weight_tying", "runtime_config",
        "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size",
        "fan_in_fan_out",  # PEFT itself ignores it for a linear map
        "velora_config",  # another backward; the forward and the merge are plain
    }
)  # fmt: skip
"""Options that describe the training, or that another option turns on."""

_MERGE = "merge it into its base (PEFT's merge_and_unload) and give the result as --model"
_RETRAIN = "train the adapter without it"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "use_dora": _MERGE,
        "modules_to_save": _MERGE,
        "trainable_token_indices": _MERGE,
        "target_parameters": _MERGE,
        "lora_bias": _RETRAIN,
        "use_bdlora": _MERGE,
        "kasa_config": _MERGE,
        "monteclora_config": _RETRAIN,
        "use_qalora": _RETRAIN,
        "alora_invocation_tokens": _RETRAIN,
        "arrow_config": _RETRAIN,
        "layer_replication": _RETRAIN,
        "megatron_config": _RETRAIN,
    }
)
"""Options that change the forward in a way that is not served -> what to do instead."""

KNOWN = HONOURED | HARMLESS | REFUSED.keys()

PLAIN_INITS = frozenset({"true", "false", "none", "gaussian", "eva", "orthogonal", "mica"})
"""Values of init_lora_weights that leave the base as it is; the others subtract from it."""

BIASES = ("none", "all", "lora_only")


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError for what is no LoRA, or an option that is refused, of adapter `name`."""
    kind = options.get("peft_type")
    if kind != "LORA":
        said = "no peft_type" if kind is None else f"peft_type {kind}"
        raise UsageError(f"adapter {name}: {said}; only LORA is supported")
    for option, hint in REFUSED.items():
        if options.get(option):
            raise UsageError(f"adapter {name}: {option} is not supported", hint=hint)
    if (bias := options.get("bias", "none")) not in BIASES:
        raise UsageError(f"adapter {name}: bias is {bias!r}; known: {', '.join(BIASES)}")


def check_saved(name: str, options: Mapping[str, Any]) -> list[str]:
    """Check the options of a folder too; return notices on options that no PEFT up to now had.

    Raises UsageError as `check_options`, for an unknown option that is switched on, and for an
    initialisation that changed the base: the folder's base is then not the one on disk.
    """
    check_options(name, options)
    init = options.get("init_lora_weights", True)
    if str(init).lower() not in PLAIN_INITS:
        raise UsageError(
            f"adapter {name}: init_lora_weights {init!r} changed the weights of its base",
            hint="save it with path_initial_model_for_weight_conversion, as a plain LoRA",
        )
    unknown = sorted(key for key in options.keys() - KNOWN if options[key])
    for key in unknown:
        number = isinstance(options[key], str | int | float) and options[key] is not True
        if key.startswith("use_") or not number:
            raise UsageError(f"adapter {name}: the option {key} is not known", hint=_MERGE)
    return [f"adapter: unknown options are ignored: {', '.join(unknown)}"] if unknown else []
