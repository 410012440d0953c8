"""Bytes as people read them."""

from __future__ import annotations

import pytest

from flexinfer.core.sizes import human


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0 KiB"), (2**20, "1.0 MiB"), (1.5 * 2**30, "1.5 GiB")]
)
def test_human(size: float, text: str) -> None:
    assert human(size) == text
