"""A model as the shapes of its tensors: from its config alone, on the meta device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flexinfer.config import Device, ModelOptions
from flexinfer.engine.requests.limits import known_positions
from flexinfer.errors import EnvironmentUnfit
from flexinfer.weights import checkpoint, gguf, hub, names, place, skeleton
from flexinfer.weights.families import text_config
from flexinfer.weights.nf4.config import Scheme, stored_scheme
from flexinfer.weights.nf4.model import ON_THE_FLY, eligible

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A causal language model on the meta device, in `dtype`, and where it will lie.

    `packed` names the linear maps that are going to be 4-bit; `fixed_bytes` are of its buffers.
    """

    name: str
    module: PreTrainedModel
    dtype: torch.dtype
    device: torch.device
    packed: frozenset[str]
    double: bool
    fixed_bytes: int
    notices: Sequence[str]

    @property
    def linears(self) -> dict[str, nn.Linear]:
        """All linear maps but the head, which are what PEFT's `all-linear` takes."""
        head = self.module.get_output_embeddings()
        return {
            name: module
            for name, module in self.module.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }

    @property
    def config(self) -> Mapping[str, Any]:
        """Its text config."""
        found: Mapping[str, Any] = self.module.config.to_dict()
        return found

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence it tells apart."""
        return known_positions(self.config)


def outline(options: ModelOptions, absent: bool = False) -> Outline:
    """Build the outline of what `options` would load; no network, no weights.

    With `absent` it may lie on a CUDA device that is not here. Raises UsageError for what is no
    model that flexinfer runs, and EnvironmentUnfit where its config is not on this machine or there
    is no such device.
    """
    found = names.resolve(options.model)
    raw = _config(found)
    config = text_config(raw, found.name)
    device, device_notice = _place(options.device, absent)
    dtype, dtype_notice = place.choose_dtype(options.dtype, device, config.dtype)
    module = skeleton.shell(config, {}, found.name)
    scheme = stored_scheme(raw, found.name) or (ON_THE_FLY if options.load_in_4bit else None)
    buffers = _buffer_bytes(module, dtype)
    return Outline(
        name=found.name,
        module=module.to(dtype),
        dtype=dtype,
        device=device,
        packed=_packed(module, scheme),
        double=scheme is not None and scheme.double,
        fixed_bytes=buffers,
        notices=(device_notice, dtype_notice),
    )


def _place(wanted: Device, absent: bool) -> tuple[torch.device, str]:
    """Return (device, notice); with `absent` --device cuda is a device, there or not."""
    if absent and wanted == "cuda" and not torch.cuda.is_available():
        return torch.device("cuda"), "device: cuda (planned for: none is here)"
    return place.choose_device(wanted)


def _config(found: names.ModelName) -> Mapping[str, Any]:
    """Return config.json of a model, embedded, in its folder, its file or the hub's cache."""
    if found.config is not None:
        embedded: Mapping[str, Any] = checkpoint.read_json(names.config_file(found.config))
        return dict(embedded["config"])
    if found.gguf is not None:
        return gguf.read_config(found.gguf)
    folder = found.folder or hub.cached_config(found.hub_ids)
    if folder is None:
        raise EnvironmentUnfit(
            f"--dry-run: the config of {found.name} is not on this machine",
            hint="give an alias or a folder, or download it first",
        )
    return checkpoint.read_json(folder / "config.json")


def _buffer_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes of all buffers: those a checkpoint holds are cast, computed ones are not."""
    stored = set(module.state_dict())
    return sum(
        buffer.numel() * (dtype.itemsize if name in stored else buffer.element_size())
        for name, buffer in module.named_buffers()
    )


def _packed(module: PreTrainedModel, scheme: Scheme | None) -> frozenset[str]:
    """Return the linear maps that become 4-bit, as loading chooses them."""
    if scheme is None:
        return frozenset()
    return frozenset(name for name in eligible(module) if not scheme.keeps(name))
