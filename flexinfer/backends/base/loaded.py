"""What every checkpoint of a module in this process's memory says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from flexinfer.attention.spec import LayerSpec
from flexinfer.models.catalog import build_decoder
from flexinfer.weights.load import LoadedModel


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Loaded weights, and the name of the back ends that are opened over them."""

    loaded: LoadedModel
    backend_name: str

    @property
    def model_name(self) -> str:
        """The model's name as reports show it."""
        return self.loaded.name

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return int(self.module.get_input_embeddings().weight.shape[0])

    @property
    def device(self) -> str:
        """Where the weights lie: `cpu` or `cuda`."""
        return str(next(self.module.parameters()).device.type)

    @property
    def load_s(self) -> float:
        """Seconds that loading took."""
        return self.loaded.load_s

    @property
    def module(self) -> PreTrainedModel:
        """The Hugging Face module that is run or read."""
        module: Any = self.loaded.module
        assert isinstance(module, PreTrainedModel)
        return module

    def outline(self) -> tuple[PreTrainedModel, Sequence[LayerSpec]]:
        """Return the module itself and its layers."""
        return self.module, build_decoder(self.module).specs
