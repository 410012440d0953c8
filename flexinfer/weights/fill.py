"""From a checkpoint's tensors to a model's: matched by name and shape, then copied one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flexinfer.config import Report, quiet
from flexinfer.errors import UsageError
from flexinfer.weights.checkpoint import Stored, opened
from flexinfer.weights.nf4.slots import Slots

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_TOWERS = ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.")
_KV = re.compile(r"model\.layers\.(\d+)\.self_attn\.[kv]_(?:proj|norm)\.")
_COMPUTED = re.compile(r"rotary_emb\.(\w+_)?inv_freq$")


class Plan(NamedTuple):
    """Which stored tensor fills which one of the model, and what is to be told about the rest.

    `source` maps a name in the model to one in the checkpoint, `twins` further stored copies of a
    tied tensor to the one that is used, `idle` names tensors of the model that nothing reads.
    """

    source: Mapping[str, str]
    twins: Mapping[str, str]
    idle: tuple[str, ...]
    notices: tuple[str, ...]


def plan(model: PreTrainedModel, stored: Mapping[str, Stored], name: str) -> Plan:
    """Match `stored` with `model`; raises UsageError naming what is missing or of another shape."""
    tied = _tied(model)
    shapes = {key: tuple(t.shape) for key, t in model.state_dict().items() if key not in tied}
    source: dict[str, str] = {}
    twins: dict[str, str] = {}
    left: list[str] = []
    # A tied tensor's own name comes first, whatever the order in the file.
    for stored_name in sorted(stored, key=lambda key: target_name(key) in tied):
        target = target_name(stored_name)
        owner = tied.get(target, target)
        if owner in source:
            twins[stored_name] = source[owner]
        elif owner in shapes:
            source[owner] = stored_name
        else:
            left.append(stored_name)
    idle = [key for key in shapes if key not in source and _is_idle(key, model.config)]
    _require_all(shapes.keys() - source.keys() - set(idle), len(shapes), name)
    for target, stored_name in source.items():
        if stored[stored_name].shape != shapes[target]:
            has, wants = list(stored[stored_name].shape), list(shapes[target])
            raise UsageError(f"{name}: {stored_name} is stored as {has}, config.json wants {wants}")
    return Plan(source, twins, tuple(idle), tuple(_left_out(left, model.config)))


@torch.no_grad()
def fill(
    model: PreTrainedModel, todo: Plan, stored: Mapping[str, Stored], report: Report = quiet
) -> None:
    """Copy every tensor into `model`, casting, a file at a time; idle ones become zero.

    Raises UsageError where the config ties tensors that the checkpoint stores with other values.
    """
    slots = Slots(model)
    for key in todo.idle:
        with slots.slot(key) as tensor:
            tensor.zero_()
    by_file = sorted(todo.source.items(), key=lambda item: stored[item[1]].path)
    done = 0
    for path, items in groupby(by_file, key=lambda item: stored[item[1]].path):
        with opened(path) as file:
            for target, name in items:
                if stored[name].parts:
                    slots.store(target, _parts(name, stored[name], file), name)
                else:
                    with slots.slot(target) as tensor:
                        tensor.copy_(file.get_tensor(name))
                done += 1
                report("loading weights", done, len(todo.source))
    for twin, name in todo.twins.items():
        _require_equal(twin, name, stored)


def _parts(name: str, whole: Stored, file: Any) -> dict[str, Tensor]:
    """Return the tensors that the weight `name` is stored as; `file` is the open one of its own."""
    found: dict[str, Tensor] = {}
    for key, part in whole.parts.items():
        with nullcontext(file) if part.path == whole.path else opened(part.path) as holder:
            found[key] = holder.get_tensor(name if key == "weight" else f"{name}.{key}")
    return found


def _require_equal(twin: str, name: str, stored: Mapping[str, Stored]) -> None:
    """Raise UsageError unless two stored tensors are bit-identical."""
    with opened(stored[twin].path) as first, opened(stored[name].path) as second:
        if not torch.equal(first.get_tensor(twin), second.get_tensor(name)):
            raise UsageError(
                f"config.json ties {twin} to {name}, but the checkpoint stores other values",
                hint='set "tie_word_embeddings": false in config.json',
            )


def _require_all(missing: Iterable[str], total: int, name: str) -> None:
    """Raise UsageError that names the first of the missing tensors."""
    if names := sorted(missing):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise UsageError(f"{name}: the weights lack {len(names)} of {total} tensors: {shown}")


def target_name(stored_name: str) -> str:
    """Return the name in a text model: a multimodal checkpoint keeps it in `language_model`."""
    return stored_name.replace("model.language_model.", "model.", 1)


def _tied(model: PreTrainedModel) -> dict[str, str]:
    """Map every further name of a parameter to its first."""
    first: dict[int, str] = {}
    every = model.named_parameters(remove_duplicate=False)
    owners = {name: first.setdefault(id(parameter), name) for name, parameter in every}
    return {name: owner for name, owner in owners.items() if name != owner}


def _is_idle(name: str, config: PreTrainedConfig) -> bool:
    """Tell whether `name` belongs to keys or values of a layer that reads another layer's cache."""
    match = _KV.match(name)
    if match is None or config.model_type != "gemma4_text":
        return False
    first: int = config.num_hidden_layers - config.num_kv_shared_layers
    return int(match.group(1)) >= first


def _left_out(left: list[str], config: PreTrainedConfig) -> Iterable[str]:
    """Say which stored tensors the model has no place for."""
    towers = [name for name in left if name.startswith(_TOWERS)]
    expected = [n for n in left if _is_idle(target_name(n), config) or _COMPUTED.search(n)]
    if towers:
        yield f"weights: text only, {len(towers)} tensors of other towers left out"
    if rest := sorted(set(left) - set(towers) - set(expected)):
        shown = ", ".join(rest[:3]) + (", ..." if len(rest) > 3 else "")
        yield f"weights: {len(rest)} tensors that the model has no place for left out: {shown}"
