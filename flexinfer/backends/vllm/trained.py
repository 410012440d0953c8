"""A trainer's weights as a checkpoint has them: what vLLM copies at every refresh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.kernels.lora import merge
from flexinfer.models.source import is_adapters, plain_name
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.live import read_live
from flexinfer.weights.adapters.names import relative_name
from flexinfer.weights.adapters.targets import listened

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TrainedWeights:
    """Tensors by the names of `module`'s checkpoint, the adapter of `model` merged as it is now.

    `model` is the module itself, or the PeftModel around it. Nothing of either is changed: each
    merged weight is a tensor of its own, computed in fp32 from the pristine base and rounded once.
    """

    def __init__(self, module: PreTrainedModel, model: nn.Module) -> None:
        """See what an adapter may change; raises UsageError for weights in 4 bits."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        _, source = listened(module)
        check_copied(source.packed)
        self._module, self._model, self._targets = module, model, source.heard
        self._adapted = any(isinstance(child, BaseTunerLayer) for child in model.modules())

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Return every name and tensor, tied ones under each of their names.

        Raises UsageError of an adapter that cannot be read, before there is a first one.
        """
        adapter = read_live(self._model, self._targets) if self._adapted else Adapter("none", {})
        return self._merged(adapter.pairs)

    @torch.no_grad()
    def _merged(self, pairs: Mapping[str, Pair]) -> Iterator[tuple[str, Tensor]]:
        """Yield them."""
        for full, tensor in self._module.state_dict().items():
            if is_adapters(full):
                continue
            name = plain_name(full)
            owner, _, kind = name.rpartition(".")
            pair = pairs.get(relative_name(owner)) if kind == "weight" else None
            if pair is None:  # a bias that is trained is the module's own
                yield name, tensor
            else:
                merged = torch.empty_like(tensor)
                merge(tensor, pair.a, pair.b, pair.scale, merged)
                yield name, merged


def check_copied(packed: bool) -> None:
    """Raise UsageError for weights that are `packed` into 4 bits."""
    if packed:
        raise UsageError(
            "vllm beside a trainer copies weights of 16 and 32 bits, none of 4",
            hint="train 16-bit weights, or take another back end",
        )
