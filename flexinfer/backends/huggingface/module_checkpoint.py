"""Weights loaded for a Hugging Face back end, the adapter in them as PEFT's layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flexinfer.backends.base.loaded import LoadedCheckpoint
from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.huggingface.hf import HfBackend
from flexinfer.backends.huggingface.hf_cb import HfCbBackend
from flexinfer.backends.huggingface.module import ModuleBackend
from flexinfer.backends.huggingface.peft_put import put_adapter
from flexinfer.config import EngineConfig, Report
from flexinfer.weights.load import LoadedModel


@dataclass(frozen=True)
class ModuleCheckpoint(LoadedCheckpoint):
    """A loaded module that back ends run as it is, one after the other."""

    @classmethod
    def of(cls, loaded: LoadedModel, backend_name: str) -> ModuleCheckpoint:
        """Put the adapter that was asked for into the module; raises UsageError where it cannot."""
        if loaded.adapter is None:
            return cls(loaded, backend_name)
        adapter = put_adapter(loaded.module, loaded.adapter)
        said = ("LoRA: runtime, PEFT's own layers", *adapter.notices)
        return cls(replace(loaded, notices=(*loaded.notices, *said)), backend_name)

    def open(self, config: EngineConfig, report: Report) -> ModuleBackend:
        """Open a back end; continuous batching keeps its manager, so that rounds measure decoding.

        Raises UsageError for settings of the engine alone.
        """
        if self.backend_name == "hf":
            return HfBackend(self.loaded, self.module, config, None, report)
        options = RolloutOptions(persistent_cb=True)
        return HfCbBackend(self.loaded, self.module, config, options, report)
