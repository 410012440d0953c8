"""Reads the active adapter of a live PEFT model: views of the trainer's own tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.check import Found
from flexinfer.weights.adapters.names import UNSERVED, relative_name
from flexinfer.weights.adapters.options import check_options

PLAIN_LAYERS = frozenset({"peft.tuners.lora.layer.Linear", "peft.tuners.lora.bnb.Linear4bit"})
"""Layers whose forward is base(x) + scale * b(a(x)); the second exists only with bitsandbytes."""

PLAIN_VARIANTS = frozenset({"MiCALinearVariant", "VeloraLinearVariant"})
"""Variants of them with the same forward: they train in another way."""


def read_live(module: nn.Module, targets: Mapping[str, tuple[int, int]]) -> Adapter:
    """Read the active adapter of a PeftModel, or of a model with injected PEFT layers.

    Tensors share storage with the module, which is not changed; scales are those the layers use
    now. Raises UsageError where no adapter or more than one is active, where adapters are disabled
    or merged, and for whatever cannot be served exactly (see options).
    """
    from peft.tuners.lora.layer import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    check_pristine(module)
    walked = _walk(module, lambda owner: _is_a(owner, BaseTunerLayer))
    tuners = {name: layer for name, layer in walked.items() if _is_a(layer, BaseTunerLayer)}
    lora = {name: layer for name, layer in tuners.items() if _is_a(layer, LoraLayer)}
    held = {name: _held(layer) for name, layer in lora.items()}
    active = _active(tuners, held)
    found = Found(f"{active} (live)", targets)
    options = _options(walked.values(), active)
    check_options(found.name, options)
    if other := next((name for name in tuners if name not in lora), None):
        raise found.refuse(f"PEFT's {_title(tuners[other])} on {other} is not supported")
    for name, layer in lora.items():
        if layer.disable_adapters:
            raise found.refuse(
                f"adapters are disabled in {name}", "call enable_adapter_layers first"
            )
        if active in held[name]:
            _add(found, relative_name(name), layer, active, options["bias"] != "none")
    if options["bias"] == "all":
        _add_biases(found, walked)
    dropout = options.get("lora_dropout")
    if dropout and any(layer.training for layer in lora.values()):
        found.notices.append(f"adapter: lora_dropout {dropout} is for training, not for rollouts")
    return found.adapter()


def _walk(module: nn.Module, ends: Callable[[nn.Module], bool]) -> dict[str, Any]:
    """Return all modules by name, not what is inside one that `ends`: in PEFT's layers is most."""
    found: dict[str, Any] = {}
    waiting = [("", module)]
    while waiting:
        name, owner = waiting.pop()
        found[name] = owner
        if not ends(owner):
            children = [held for held in vars(owner)["_modules"].items() if held[1] is not None]
            waiting += [(f"{name}.{own}" if name else own, child) for own, child in children[::-1]]
    return found


def _is_a(module: nn.Module, kind: type) -> bool:
    """Do what isinstance does; that is slow for PEFT's abstract classes, and a model is large."""
    return kind in type(module).__mro__


def _title(layer: nn.Module) -> str:
    """Return the full name of a layer's class: many methods of PEFT have a Linear."""
    return f"{type(layer).__module__}.{type(layer).__name__}"


def _active(tuners: Mapping[str, Any], lora: Mapping[str, Collection[str]]) -> str:
    """Return the one adapter that is active in any layer; `lora` are those of each LoRA layer."""
    held = {name for names in lora.values() for name in names}
    if not held:
        other = next((_title(layer) for layer in tuners.values()), None) if not lora else None
        what = "no LoRA adapter is active" if tuners else "the model has no PEFT layers"
        raise UsageError(
            what if other is None else f"PEFT's {other} is not supported",
            hint="hand in what get_peft_model returned, with one LoRA adapter active",
        )
    if len(held) > 1:
        raise UsageError(
            f"{len(held)} adapters are active: {', '.join(sorted(held))}",
            hint="call set_adapter with one of them",
        )
    return next(iter(held))


def _options(modules: Collection[nn.Module], active: str) -> Mapping[str, Any]:
    """Return the adapter's LoraConfig as a mapping; PEFT hangs it on the model it was injected in.

    Which module that is depends on how it was injected, so it is looked up by its name.
    """
    configs = (vars(module).get("peft_config") for module in modules)
    found = next((table[active] for table in configs if table and active in table), None)
    if found is None:
        raise UsageError(
            f"the configuration of adapter {active} is not on the model",
            hint="hand in the whole model that get_peft_model or add_adapter returned",
        )
    options: dict[str, Any] = vars(found)
    return options


def _held(layer: Any) -> set[str]:
    """Return the adapters that a layer has and uses."""
    return set(layer.active_adapters) & {*layer.lora_A, *layer.lora_embedding_A}


def check_pristine(module: nn.Module) -> None:
    """Raise UsageError where PEFT has merged an adapter into weights, which are then no base.

    It is asked at every call of an engine, so it does not look into PEFT's layers.
    """
    for name, owner in _walk(module, lambda owner: "merged_adapters" in vars(owner)).items():
        if merged := vars(owner).get("merged_adapters"):
            raise UsageError(
                f"adapter {merged[0]} is merged into {name}, so the base is not pristine",
                hint="load the base anew and never merge: the engine keeps copies of its own",
            )


def _add(found: Found, name: str, layer: Any, active: str, biased: bool) -> None:
    """Add the pair of a layer, or its name where the text model has no such linear map."""
    variant = layer.lora_variant.get(active)
    if name in UNSERVED:
        raise found.refuse(f"LoRA on {name} is not supported", "leave it out of target_modules")
    if _title(layer) not in PLAIN_LAYERS or layer.fan_in_fan_out:
        raise found.refuse(f"PEFT's {type(layer).__name__} on {name} is not supported")
    if variant is not None and type(variant).__name__ not in PLAIN_VARIANTS:
        raise found.refuse(f"PEFT's {type(variant).__name__} on {name} is not supported")
    if name not in found.targets:
        found.absent.append(name)
        return
    a, b = layer.lora_A[active].weight.detach(), layer.lora_B[active].weight.detach()
    bias = _bias(layer.get_base_layer()) if biased else None
    found.pairs[name] = Pair(a, b, float(layer.scaling[active]), bias)


def _add_biases(found: Found, walked: Mapping[str, Any]) -> None:
    """Add the biases of linear maps without LoRA, which bias="all" trains too."""
    for full_name, module in walked.items():
        name = relative_name(full_name)
        if name in found.targets and name not in found.pairs and isinstance(module, nn.Linear):
            bias = _bias(module)
            if bias is not None:
                found.pairs[name] = found.only_bias(name, bias)


def _bias(linear: nn.Module) -> Tensor | None:
    """Return the bias of a linear map, sharing its storage."""
    assert isinstance(linear, nn.Linear), f"{type(linear).__name__} under PEFT's Linear"
    return None if linear.bias is None else linear.bias.detach()
