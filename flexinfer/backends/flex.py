"""The engine of this package as a rollout back end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from flexinfer.config import EngineConfig, LoraMode, Report
from flexinfer.engine.engine import Engine
from flexinfer.engine.outputs import EngineStats, Request, RequestOutput
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.load import LoadedModel


@dataclass(frozen=True)
class FlexBackend:
    """One engine, seen through the protocol.

    `live`: its adapter is a trainer's, so a refresh reads the trainer's tensors anew.
    """

    engine: Engine
    name: str = "flex"
    live: bool = False

    @property
    def notices(self) -> tuple[str, ...]:
        """What runs and why, as the engine says it."""
        return self.engine.notices

    @property
    def stats(self) -> EngineStats:
        """The engine's own counters."""
        return self.engine.stats

    @property
    def max_seq_length(self) -> int:
        """What was asked for, or less where the model knows fewer positions."""
        return self.engine.max_seq_length

    @property
    def adapter(self) -> tuple[Adapter, LoraMode] | None:
        """The adapter in use and its mode."""
        weights = self.engine.machinery.weights
        if weights.adapter is None or weights.mode is None:
            return None
        return weights.adapter, weights.mode

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Serve every request, in input order."""
        return self.engine.generate(requests)

    @property
    def policy_version(self) -> int:
        """Refreshes of the engine."""
        return self.engine.policy_version

    def refresh(self) -> None:
        """Bring the adapter in anew: the trainer's as it is now, else the one in use."""
        self.engine.refresh(None if self.live else self.engine.machinery.weights.adapter)

    def sleep(self) -> None:
        """Give the KV cache's memory back until the next call."""
        self.engine.sleep()

    def close(self) -> None:
        """Give the KV cache and the graphs back."""
        self.engine.close()


@dataclass(frozen=True)
class FlexCheckpoint:
    """Loaded weights that engines borrow, one engine at a time."""

    loaded: LoadedModel
    backend_name: str = "flex"

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
        """The Hugging Face module the engines read."""
        return self.loaded.module

    def open(self, config: EngineConfig, report: Report) -> FlexBackend:
        """Build an engine over the same weights."""
        return FlexBackend(Engine(self.loaded, config, report))
