"""Settings at and beyond their edges: what is refused, in which words, and what sizes mean."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

from flexinfer.config import (
    EngineConfig,
    ModelOptions,
    SamplingParams,
    parse_size,
    resolve_sampling,
)
from flexinfer.engine.steps.state import SlotState
from flexinfer.errors import OutOfRange, UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17b", 17),
        ("4k", 4000),
        ("1.5KB", 1500),
        ("3 KiB", 3 * 2**10),
        ("2m", 2 * 10**6),
        ("2MiB", 2 * 2**20),
        ("8G", 8 * 10**9),
        ("8GiB", 8 * 2**30),
        ("2T", 2 * 10**12),
        ("2tb", 2 * 10**12),
        ("0.5TiB", 2**39),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--kv-memory") == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (str(2**63), "too large"),
        ("9" * 400, "too large"),
        ("9" * 5000, "too large"),
        ("99999999TiB", "too large"),
        ("1e400", "not a size"),
        ("inf", "not a size"),
        ("-1", "not a size"),
        ("1.5", "not a whole number"),
        ("2PiB", "not a size"),
        ("2ti", "not a size"),
        ("٣GiB", "not a size"),
        ("", "not a size"),
    ],
)
def test_what_is_no_size(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--kv-memory") as caught:
        parse_size(text, "--kv-memory")
    assert said in caught.value.message


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 10**30])
@pytest.mark.parametrize(
    "settings", [EngineConfig, lambda seed: ModelOptions(model="m", seed=seed)]
)
def test_seeds_are_refused_rather_than_wrapped(settings: Any, seed: int) -> None:
    with pytest.raises(UsageError, match=r"--seed is .*; allowed: 0 to 2\*\*63 - 1"):
        settings(seed=seed)
    assert settings(seed=2**63 - 1).seed == SamplingParams(seed=2**63 - 1).seed


EDGES = {
    "temperature": ((0, 1e-6, 1, 1e6), (1e-39, 9e-7, -1e-9, 1.1e6, 1e308, math.inf, math.nan)),
    "repetition_penalty": ((1e-6, 1e6), (0, 1e-30, 9e-7, 1.1e6, 1e39, math.inf, math.nan)),
    "top_p": ((1e-300, 1), (0, 1.001, math.nan)),
    "min_p": ((0, 1e-300, 1), (-1e-9, 1.001, math.nan)),
    "top_k": ((-1, 0, 2**31 - 1), (-2, 2**31)),
    "max_new_tokens": ((1,), (0, -1)),
    "n": ((1, 2**16), (0, 2**16 + 1)),
    "seed": ((0, None, 2**63 - 1), (-1, 2**63)),
    "stop": (((), ["a"]), ("ab", [""], [1])),
}


@pytest.mark.parametrize("name", EDGES)
def test_the_edges_of_sampling(name: str) -> None:
    good, bad = EDGES[name]
    for value in good:
        SamplingParams(**{name: value})
    flag = "-n" if name == "n" else "--" + name.replace("_", "-")
    wrong = {"hot", True, 3.5 if isinstance(good[0], int) and name not in FLOATS else "x"}
    for value in [*bad, *wrong]:
        with pytest.raises(OutOfRange) as caught:
            SamplingParams(**{name: value})
        assert caught.value.message.startswith(f"{flag} is {value!r}; allowed: ")
        assert caught.value.said(name).startswith(f"{name} is {value!r}; allowed: ")


FLOATS = ("temperature", "repetition_penalty", "top_p", "min_p")


def test_edges_reach_the_device_without_a_warning() -> None:
    state = SlotState(1, 4, torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in FLOATS:
            for value in EDGES[name][0]:
                state.admit([0], [SamplingParams(**{name: value})], [2**63 - 1])
                assert all(tensor.isfinite().all() for tensor in state.tensors)


def test_a_generation_config_is_blamed_for_what_it_says() -> None:
    broken = {"do_sample": True, "temperature": 1e-39, "top_k": 5}
    with pytest.raises(
        UsageError, match=r"generation_config\.json: temperature is 1e-39"
    ) as caught:
        resolve_sampling({}, broken)
    assert "--temperature" in str(caught.value.hint)
    assert resolve_sampling({"temperature": 1.0}, broken).top_k == 5
    with pytest.raises(UsageError, match=r"^--top-p is 2; allowed"):
        resolve_sampling({"top_p": 2, "temperature": 1.0}, broken)
    assert resolve_sampling({}, broken | {"do_sample": False}).temperature == 0
