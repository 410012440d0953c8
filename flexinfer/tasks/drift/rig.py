"""What verify-drift touches outside itself; heavy imports wait until they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.config import EngineConfig, ModelOptions, Report

if TYPE_CHECKING:
    from flexinfer.engine.engine import Engine
    from flexinfer.weights.load import LoadedModel


def load_model(options: ModelOptions, report: Report) -> LoadedModel:
    """Load the weights."""
    from flexinfer.weights.load import load

    return load(options, report)


def open_engine(loaded: LoadedModel, config: EngineConfig, report: Report) -> Engine:
    """Build an engine over loaded weights and the adapter that was chosen for them."""
    from flexinfer.engine.engine import Engine

    return Engine(loaded, config, report)


@dataclass(frozen=True, kw_only=True)
class Rig:
    """All of it; a test hands in engines that do something wrong."""

    load: Callable[[ModelOptions, Report], LoadedModel] = load_model
    open: Callable[[LoadedModel, EngineConfig, Report], Engine] = open_engine
