"""The engine of this package as a rollout back end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexinfer.backends.base.loaded import LoadedCheckpoint
from flexinfer.config import EngineConfig, LoraMode, Report
from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import EngineStats, Request, RequestOutput
from flexinfer.weights.adapters.adapter import Adapter


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
class FlexCheckpoint(LoadedCheckpoint):
    """Loaded weights that engines borrow, one engine at a time."""

    backend_name: str = "flex"

    def open(self, config: EngineConfig, report: Report) -> FlexBackend:
        """Build an engine over the same weights."""
        return FlexBackend(Engine(self.loaded, config, report))
