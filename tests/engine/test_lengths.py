"""Lengths of sequences and pages as pure functions of what is asked for and what a model knows."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.engine.requests.limits import known_positions, limits
from flexinfer.errors import UsageError


@pytest.mark.parametrize(
    ("length", "page", "known", "longest", "chosen"),
    [
        (None, None, 100_000, 4096, 16),
        (None, None, 300, 300, 16),
        (5, None, 300, 5, 16),
        (300, 512, 300, 300, 512),
        (300, 1024, 300, 300, 512),
        (256, 512, 300, 256, 256),
        (2, 16, 300, 2, 8),
        (2, 8, 300, 2, 8),
        (64, 2**62, 300, 64, 64),
    ],
)
def test_what_is_chosen(
    length: int | None, page: int | None, known: int, longest: int, chosen: int
) -> None:
    found = limits(length, page, 16, known, "m")
    assert (found.longest, found.page) == (longest, chosen)
    assert bool(found.notices) == (page not in (None, chosen))


def test_more_than_the_model_knows_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--max-seq-length 301: m knows .* 300 tokens") as caught:
        limits(301, None, 16, 300, "m")
    assert "300 or less" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("rope", "known"),
    [
        (None, 1000),
        ({"rope_type": "default", "rope_theta": 1e4}, 1000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 800}, 3200),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        ({"rope_type": "linear", "factor": 2.0}, 2000),
        ({"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 100}, 1000),
        ({"full_attention": {"rope_type": "proportional", "factor": 9.0}}, 1000),
    ],
)
def test_known_positions(rope: dict[str, Any] | None, known: int) -> None:
    config = {"max_position_embeddings": 1000, "rope_parameters": rope}
    assert known_positions(config) == known
