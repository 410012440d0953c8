"""However little is asked for, every check means something; what is absurd is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.errors import UsageError
from flexinfer.tasks.drift.config import MOST_CYCLES, MOST_NOISE, MOST_PROMPTS, DriftConfig
from tests.support import drift as doubles
from tests.support.drift import drift, failed
from tests.support.engines import tiny

LEAST: dict[str, Any] = {"cycles": 1, "n_prompts": 1, "max_new_tokens": 1}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("engine", [{}, {"max_seq_length": 2}, {"max_batch_size": 1}])
def test_the_effect_of_an_adapter_shows_in_one_token(engine: dict[str, Any], seed: int) -> None:
    report = drift(tiny("qwen3"), engine=engine, seed=seed, adapter="random:4", **LEAST)
    assert failed(report) == set()


def test_an_adapter_that_never_comes_in_is_seen_in_one_token() -> None:
    assert "adapter_effect" in failed(drift(tiny("qwen3"), doubles.skipping_refreshes, **LEAST))


def test_a_noise_that_moves_nothing_proves_nothing() -> None:
    with pytest.raises(UsageError, match="--noise-scale 1e-30 moves no bit of the adapter"):
        drift(tiny("qwen3"), noise_scale=1e-30)


@pytest.mark.parametrize(
    ("name", "most", "above"),
    [
        ("cycles", MOST_CYCLES, 10**12),
        ("n_prompts", MOST_PROMPTS, 10**12),
        ("noise_scale", MOST_NOISE, 1e300),
    ],
)
def test_what_would_never_end_is_refused(name: str, most: float, above: float) -> None:
    assert DriftConfig(**{name: most})
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=rf"{flag} is .*at most {most}"):
        DriftConfig(**{name: above})
