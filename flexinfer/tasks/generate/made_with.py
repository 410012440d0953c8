"""What a record says of the weights it was made with, so that --resume knows others."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from flexinfer.tasks.generate.records import Record

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flexinfer.engine.engine import Engine
    from flexinfer.weights.inference import InferenceWeights
    from flexinfer.weights.load import LoadedModel


def made_with(loaded: LoadedModel, engine: Engine | None) -> Record:
    """Return dtype and quantization, a checksum of the base, and the adapter with its mode.

    Without an engine (nothing is left to generate) an adapter is read as an engine would.
    """
    from flexinfer.models.nf4 import is_4bit

    module: Any = loaded.module
    packed = any(is_4bit(parameter) for parameter in module.parameters())
    base = {
        "dtype": str(module.config.dtype).removeprefix("torch."),
        "quantization": "nf4" if packed else None,
        "weights_checksum": checksum(module),
    }
    if loaded.adapter is None:
        return base
    weights = engine.machinery.weights if engine is not None else _read(loaded)
    assert weights.adapter is not None
    version = {} if engine is None else {"policy_version": engine.policy_version}
    return base | {"adapter_sha": weights.adapter.sha(), **version, "lora_mode": weights.mode}


def checksum(module: nn.Module) -> str:
    """Return 16 hex digits over names, shapes and sums of every tensor's bits.

    Far quicker than the sha256 of all bytes, and any one changed weight changes it.
    """
    import torch

    state = {name: tensor.detach() for name, tensor in sorted(module.state_dict().items())}
    sums = torch.stack([_bits(tensor).sum(dtype=torch.int64) for tensor in state.values()]).tolist()
    whole = hashlib.sha256()
    for (name, tensor), total in zip(state.items(), sums, strict=True):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {total}\n".encode())
    return whole.hexdigest()[:16]


def _bits(tensor: Tensor) -> Tensor:
    """Return a tensor's values as integers of the same width."""
    import torch

    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.as_subclass(torch.Tensor).contiguous().view(widths[tensor.element_size()])


def _read(loaded: LoadedModel) -> InferenceWeights:
    """Read the adapter; raises UsageError as building an engine does."""
    from flexinfer.weights.adapters.merged import Merge
    from flexinfer.weights.inference import InferenceWeights

    return InferenceWeights(loaded.module, loaded.adapter, Merge())
