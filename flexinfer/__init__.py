"""Rollouts and evaluation from the trainer's own weights, on one GPU.

Everything here is imported on first use, so that `import flexinfer` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexinfer.config import EngineConfig, ModelOptions, SamplingParams
    from flexinfer.engine.engine import Engine
    from flexinfer.engine.requests.outputs import Completion, Request, RequestOutput
    from flexinfer.weights.adapters.choice import AdapterChoice
    from flexinfer.weights.load import LoadedModel, adopt, load

__version__ = "0.1.0"
__all__ = [
    "AdapterChoice",
    "Completion",
    "Engine",
    "EngineConfig",
    "LoadedModel",
    "ModelOptions",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "adopt",
    "load",
]

_HOMES = {
    "Engine": "flexinfer.engine.engine",
    "Completion": "flexinfer.engine.requests.outputs",
    "Request": "flexinfer.engine.requests.outputs",
    "RequestOutput": "flexinfer.engine.requests.outputs",
    "EngineConfig": "flexinfer.config",
    "ModelOptions": "flexinfer.config",
    "SamplingParams": "flexinfer.config",
    "AdapterChoice": "flexinfer.weights.adapters.choice",
    "LoadedModel": "flexinfer.weights.load",
    "adopt": "flexinfer.weights.load",
    "load": "flexinfer.weights.load",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flexinfer' has no attribute {name!r}")
    from flexinfer.core.imports import large_imports

    with large_imports():
        return getattr(import_module(_HOMES[name]), name)
