"""Filling a model whose linears are partly 4-bit: one weight at a time is there in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.kernels.nf4 import BLOCK
from flexinfer.models.nf4 import is_4bit
from flexinfer.weights.nf4.library import library
from flexinfer.weights.nf4.state import check_parts
from flexinfer.weights.pack import GROUPS

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Slots:
    """Where values go, by name: into the model's own tensors, or through quantisation.

    4-bit weights lie on the meta device until they are filled. The bytes of projections that read
    the same input are row views of one buffer, in the order of GROUPS.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Take a model with all other memory in place, and allocate the bytes."""
        self._model = model
        self._tensors = model.state_dict()
        self._device = model.get_input_embeddings().weight.device
        self._bytes = _allocated(model, self._device)

    @contextmanager
    def slot(self, name: str) -> Iterator[Tensor]:
        """Give the tensor to fill; a 4-bit weight is quantised when that is done."""
        if name not in self._bytes:
            yield self._tensors[name]
            return
        shape, dtype = self._tensors[name].shape, self._model.config.dtype
        whole = torch.empty(shape, dtype=dtype, device=self._device)
        yield whole
        double = self._linear(name).weight.compress_statistics
        self._keep(name, *library().functional.quantize_4bit(
            whole, blocksize=BLOCK, compress_statistics=double, quant_type="nf4"
        ))  # fmt: skip

    def store(self, name: str, parts: Mapping[str, Tensor], told: str) -> None:
        """Take stored `weight` and statistics; raises UsageError, naming `told`, if they misfit."""
        check_parts(told, parts)
        parts = dict(parts)
        packed = parts.pop("weight").view(torch.uint8)
        rows, inputs = self._tensors[name].shape
        state = library().functional.QuantState.from_dict(parts, device=self._device)
        blocks = rows * inputs // state.blocksize
        if packed.numel() * 2 != rows * inputs or state.absmax.numel() != blocks:
            raise UsageError(
                f"{told}: {packed.numel()} bytes and {state.absmax.numel()} scales are no"
                f" [{rows}, {inputs}] in 4 bits", hint="download it again",
            )  # fmt: skip
        self._keep(name, packed, state)

    def _linear(self, name: str) -> Any:
        """Return the Linear4bit that owns a weight."""
        return self._model.get_submodule(name.removesuffix(".weight"))

    def _keep(self, name: str, packed: Tensor, state: Any) -> None:
        """Make bytes and state the weight of a linear; it is dequantised to the model's dtype."""
        linear, view = self._linear(name), self._bytes[name]
        view.copy_(packed.view_as(view))
        state.dtype = self._model.config.dtype
        linear.weight = library().nn.Params4bit(
            view, requires_grad=False, quant_state=state, blocksize=state.blocksize,
            compress_statistics=state.nested, quant_type="nf4", quant_storage=torch.uint8,
            module=linear, bnb_quantized=True,
        )  # fmt: skip
        linear.quant_state = state


def _allocated(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Return uninitialised bytes [N K / 2, 1] for every unfilled 4-bit weight, by its name."""
    views: dict[str, Tensor] = {}
    for prefix, parent in model.named_modules():
        shapes = {
            name: child.weight.shape
            for name, child in parent.named_children()
            if isinstance(child, nn.Linear) and is_4bit(child.weight) and child.weight.is_meta
        }
        grouped = [[name for name in group if name in shapes] for group in GROUPS]
        alone = [[name] for name in shapes if not any(name in group for group in GROUPS)]
        for group in filter(None, grouped + alone):
            rows = [shapes[name][0] for name in group]
            width = shapes[group[0]][1] // 2
            buffer = torch.empty(sum(rows), width, dtype=torch.uint8, device=device)
            for name, part in zip(group, torch.split(buffer, rows), strict=True):
                views[f"{prefix}.{name}.weight".removeprefix(".")] = part.view(-1, 1)
    return views
