"""Reads an adapter that PEFT saved: adapter_config.json and its tensors, without PEFT."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.errors import UsageError, one_line
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.check import Found
from flexinfer.weights.adapters.names import UNSERVED, relative_name, some, trained_name
from flexinfer.weights.adapters.options import check_saved
from flexinfer.weights.adapters.rules import LoraRules
from flexinfer.weights.checkpoint import opened, read_json

CONFIG = "adapter_config.json"
SAFE, PICKLED = "adapter_model.safetensors", "adapter_model.bin"

_LORA = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_BASE_BIAS = re.compile(r"(?P<module>.+)\.base_layer\.bias")
_BIAS = re.compile(r"(?P<module>.+)\.bias")
_BACKWARD = re.compile(r".+\.lora_velora_embed(\.default)?")
_WHAT: Mapping[str, str] = {
    "lora_magnitude_vector": "DoRA is not supported",
    "lora_embedding_": "LoRA on an embedding is not supported",
    "trainable_tokens": "trainable_token_indices is not supported",
    "lora_B": "a bias of lora_B (lora_bias) is not supported",
}
"""Part of a tensor's name -> what it is of."""


class Held(NamedTuple):
    """A file's tensors by the names of the modules that PEFT saw.

    `sides` are lora_A and lora_B as "A" and "B"; `base_biases` belong to modules with LoRA,
    `biases` to others.
    """

    sides: dict[str, dict[str, Tensor]]
    base_biases: dict[str, Tensor]
    biases: dict[str, Tensor]


def read_folder(folder: Path, targets: Mapping[str, tuple[int, int]]) -> Adapter:
    """Read the adapter in `folder` for a text model whose linear maps are `targets` (out, in).

    Tensors stay on the host in the dtype of the file. What PEFT would leave out on loading is left
    out and noted: modules that the model has not, and those that target_modules does not name.
    Raises UsageError in one line for what is broken, does not fit, or cannot be served exactly.
    """
    found = Found(str(folder), targets)
    options = read_json(folder / CONFIG)
    found.notices += check_saved(found.name, options)
    held = _sort(found, _read_tensors(folder))
    rules = LoraRules(found.name, options)
    rules.check(held.sides.keys())
    unselected = {module for module in held.sides if not rules.selects(module)}
    for module in sorted(held.sides.keys() - unselected):
        _add(found, rules, module, held.sides[module], held.base_biases.get(module))
    for module, bias in sorted(held.biases.items()):
        _add_bias(found, module, bias)
    if unselected:
        found.notices.append(
            f"adapter: target_modules does not name {some(sorted(unselected))}; left out, as PEFT"
            " does"
        )
    return found.adapter()


def _add(
    found: Found, rules: LoraRules, module: str, sides: Mapping[str, Tensor], bias: Tensor | None
) -> None:
    """Add the pair of a module, or its name where the text model has no such linear map."""
    name = relative_name(module)
    if name in UNSERVED:
        raise found.refuse(f"LoRA on {name} is not supported", "leave it out of target_modules")
    if lost := {"A", "B"} - sides.keys():
        raise found.refuse(f"{module} has no lora_{lost.pop()}", "save the adapter again")
    if name not in found.targets:
        found.absent.append(name)
        return
    if name in found.pairs:
        raise found.refuse(f"it holds {name} twice", "save the adapter again")
    rank, held = rules.rank(module), sides["A"].shape[0] if sides["A"].dim() else 0
    if rank != held:
        raise found.refuse(f"{module} has rank {held}; {CONFIG} says {rank}")
    found.pairs[name] = Pair(sides["A"], sides["B"], rules.scale(module), bias)


def _add_bias(found: Found, module: str, bias: Tensor) -> None:
    """Add a bias that was trained without LoRA on its linear map (bias="all")."""
    name = relative_name(module)
    if name in found.pairs:
        raise found.refuse(f"{module}.bias is not where PEFT puts it", "save the adapter again")
    if name not in found.targets:
        raise found.refuse(
            f"it trains {module}.bias, which is no linear map of the text model",
            "train it with bias='lora_only'",
        )
    found.pairs[name] = found.only_bias(name, bias)


def _sort(found: Found, tensors: Mapping[str, Tensor]) -> Held:
    """Sort tensors by what they are; raises UsageError for what cannot be served."""
    held = Held({}, {}, {})
    for key, tensor in sorted(tensors.items()):
        if hit := _LORA.fullmatch(key):
            sides = held.sides.setdefault(trained_name(hit["module"]), {})
            if hit["side"] in sides:
                raise found.refuse(f"it holds {key} twice", "save the adapter again")
            sides[hit["side"]] = tensor
        elif hit := _BASE_BIAS.fullmatch(key):
            held.base_biases[trained_name(hit["module"])] = tensor
        elif "lora_" not in key and (hit := _BIAS.fullmatch(key)):
            held.biases[trained_name(hit["module"])] = tensor
        elif not _BACKWARD.fullmatch(key):
            raise found.refuse(*_unserved(key))
    if lost := held.base_biases.keys() - held.sides.keys():
        raise found.refuse(f"{min(lost)} has a bias but no lora_A", "save the adapter again")
    return held


def _unserved(key: str) -> tuple[str, str]:
    """Return why a tensor is refused, and the cure."""
    why = next((text for part, text in _WHAT.items() if part in key), None)
    if why is None and key.endswith(".weight") and "lora_" not in key:
        why = "whole weights beside LoRA are not supported"
    return (
        f"it holds {key}: {why or 'this is no tensor of LoRA'}",
        "merge it into its base (PEFT's merge_and_unload) and give the result as --model",
    )


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors, as copies: a trainer may write the file anew while they are in use."""
    if not (folder / SAFE).is_file() and (folder / PICKLED).is_file():
        return _read_pickled(folder / PICKLED)
    if not (folder / SAFE).is_file():
        raise UsageError(f"{folder} holds no {SAFE}", hint="give the folder of a PEFT adapter")
    with opened(folder / SAFE) as file:
        return {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 - no dict


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read an adapter_model.bin, running no code in it; raises UsageError where it is broken."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        first = one_line(error).partition(". ")[0]
        raise UsageError(f"{path} cannot be read: {first}", hint="save it again") from error
    if not isinstance(tensors, dict) or not all(map(_is_plain, tensors.keys(), tensors.values())):
        raise UsageError(f"{path} holds no table of plain tensors", hint="save it again")
    return {key: tensor.detach().contiguous() for key, tensor in tensors.items()}


def _is_plain(key: object, tensor: object) -> bool:
    """Whether this is a named tensor of strided values, as safetensors could hold it."""
    return (
        isinstance(key, str)
        and isinstance(tensor, Tensor)
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized)
    )
