"""Where a walker's tensors come from: a Hugging Face module, read by checkpoint name."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.kernels.linear import Dense, Leaf
from flexinfer.models.nf4 import is_4bit, nf4_leaf


class Source(Protocol):
    """Tensors and leaves by checkpoint name; names are relative to the text model's root."""

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `name`, sharing its storage."""
        ...

    def linear(self, name: str) -> Leaf:
        """Return the linear map whose weight is `name.weight`."""
        ...

    def has(self, name: str) -> bool:
        """Say whether there is a tensor `name`."""
        ...

    @property
    def rope_dtype(self) -> torch.dtype:
        """Dtype that rope frequencies have been through: casting a whole module rounds them."""
        ...


def base_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by the names they had before PEFT wrapped or injected anything.

    What an adapter added is left out; tied parameters stand under each of their names.
    """
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    return {plain_name(name): tensor for name, tensor in named if not is_adapters(name)}


def plain_name(name: str) -> str:
    """Return a tensor's name as in the model that PEFT wrapped."""
    plain = name.removeprefix("base_model.model.").replace(".original_module.", ".")
    plain = plain.replace(".token_adapter.base_layer.", ".")
    return plain.replace(".base_layer.", ".").removesuffix(".base_layer")


def is_adapters(name: str) -> bool:
    """Whether a tensor belongs to an adapter and not to the model under it."""
    return any(part in name for part in (".lora_", ".modules_to_save.", ".trainable_tokens_"))


class ModuleSource:
    """A Source over parameters and buffers of a module, which is read and never changed.

    `root` is the prefix of the text model (`model.`); the head is looked up beside it.
    """

    def __init__(self, module: nn.Module, root: str) -> None:
        """Take detached views of all tensors; raise UsageError if they lie on several devices."""
        self._tensors = {name: tensor.detach() for name, tensor in base_tensors(module).items()}
        self._packed = {
            plain_name(name): owner
            for name, owner in module.named_modules()
            if is_4bit(dict(owner.named_parameters(recurse=False)).get("weight"))
        }
        self._root = root
        devices = sorted({str(p.device) for p in module.parameters()})
        if len(devices) > 1:
            raise UsageError(
                f"the model is spread over {', '.join(devices)}", hint="load it on one device"
            )

    @property
    def packed(self) -> bool:
        """Whether linear maps of the module are quantised to 4 bits."""
        return bool(self._packed)

    def has(self, name: str) -> bool:
        """Say whether the module has a tensor `name`, under the root or beside it."""
        return self._root + name in self._tensors or name in self._tensors

    @property
    def rope_dtype(self) -> torch.dtype:
        """Dtype of the module's own rope frequencies (fp32 unless the module was cast)."""
        inside = (t for n, t in self._tensors.items() if n.startswith(self._root + "rotary_emb."))
        return next((tensor.dtype for tensor in inside), torch.float32)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `name`, detached, sharing its storage."""
        inner = self._tensors.get(self._root + name)
        found = inner if inner is not None else self._tensors.get(name)
        if found is None:
            raise UsageError(f"the model has no tensor {self._root + name!r}")
        return found

    def linear(self, name: str) -> Leaf:
        """Return `name` as a Dense or Nf4 leaf; raise UsageError if quantised in another way."""
        owner = self._packed.get(self._root + name)
        if owner is not None:
            return nf4_leaf(owner, name)
        weight, bias = self.tensor(f"{name}.weight"), f"{name}.bias"
        if not weight.is_floating_point():
            raise UsageError(
                f"{name}.weight is {weight.dtype}", hint="of quantised weights, NF4 is supported"
            )
        return Dense(weight, self.tensor(bias) if self.has(bias) else None)
