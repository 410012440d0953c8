"""Safetensors of a folder, checked by name and shape, then copied into a model one at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flexinfer.config import Report, quiet
from flexinfer.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INDEX = "model.safetensors.index.json"
_TOWERS = ("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio.")
_UNUSED = re.compile(r"rotary_emb\.inv_freq$")
_SHARED = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:[kv]_proj|[kv]_norm)\.")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UsageError in one line where it is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} does not hold a JSON object")
    return value


class Checkpoint:
    """The safetensors of one folder: which file holds which tensor; nothing is read but headers."""

    def __init__(self, folder: Path) -> None:
        """List the tensors of `folder`; raises UsageError for missing, partial or corrupt files."""
        self.folder = folder
        self.where: dict[str, Path] = {}
        for path in self._files():
            with _open(path) as file:
                self.where |= dict.fromkeys(file.keys(), path)

    def _files(self) -> list[Path]:
        """Return the weight files, as the index or else the folder lists them."""
        if (self.folder / INDEX).is_file():
            names = sorted(set(read_json(self.folder / INDEX).get("weight_map", {}).values()))
            if lost := [name for name in names if not (self.folder / name).is_file()]:
                raise UsageError(
                    f"{self.folder} lacks the weight file {lost[0]}", hint="download it"
                )
            return [self.folder / name for name in names]
        single = self.folder / "model.safetensors"
        found = [single] if single.is_file() else sorted(self.folder.glob("model*.safetensors"))
        if not found:
            raise UsageError(f"{self.folder} holds no model*.safetensors")
        return found


class Plan:
    """Which tensor of a checkpoint fills which one of a model."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel) -> None:
        """Match all names; raises UsageError that names what the checkpoint lacks."""
        self.source: dict[str, str] = {}
        self.unexpected: list[str] = []
        wanted = set(model.state_dict()) - _tied(model)
        for name in checkpoint.where:
            target = name.replace("model.language_model.", "model.", 1)
            if target in wanted:
                self.source[target] = name
            elif not name.startswith(_TOWERS) and not _UNUSED.search(name):
                self.unexpected.append(name)
        self._checkpoint = checkpoint
        if missing := sorted(wanted - set(self.source)):
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise UsageError(
                f"{checkpoint.folder}: the weights lack {len(missing)} of {len(wanted)} tensors: {shown}"
            )

    @torch.no_grad()
    def copy(self, model: PreTrainedModel, report: Report = quiet) -> None:
        """Copy every tensor into `model`, casting; raises UsageError for a shape that differs."""
        targets = model.state_dict()
        for done, (target, name) in enumerate(self.source.items()):
            with _open(self._checkpoint.where[name]) as file:
                _copy(file.get_tensor(name), targets[target], name)
            report("loading weights", done + 1, len(self.source))


def _copy(tensor: Tensor, target: Tensor, name: str) -> None:
    """Copy one tensor of the same shape."""
    if tensor.shape != target.shape:
        raise UsageError(
            f"{name} is {list(tensor.shape)} in the checkpoint, {list(target.shape)} by config.json"
        )
    target.copy_(tensor)


def _tied(model: PreTrainedModel) -> set[str]:
    """Return the names that are further names of an earlier parameter."""
    unique = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - unique


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raises UsageError in one line where it is corrupt."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is no readable safetensors file: {error}") from error
