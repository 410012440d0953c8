"""Qwen3: Llama's blocks with a norm over each query and key head; windows where configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexinfer.models import llama
from flexinfer.models.decoder import Walker
from flexinfer.models.source import Source


def build(config: Mapping[str, Any], source: Source) -> Walker:
    """Build the walker of a Qwen3."""
    walker = llama.build(config, source)
    assert all(layer.weights.head_norms is not None for layer in walker.layers)
    return walker
