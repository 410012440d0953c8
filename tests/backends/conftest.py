"""What tests of rollouts share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture
def quick_collection() -> None:
    """Keep what is imported out of the collections that continuous batching runs at each stop."""
    gc.collect()
    gc.freeze()
