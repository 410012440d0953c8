"""The profile on CUDA: operations make up the captured step, and a call's shares are shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexinfer.backends.flex import FlexBackend
from flexinfer.engine.engine import Engine
from flexinfer.models.catalog import build_decoder
from flexinfer.tasks.bench.profile.result import Profile, Subject
from flexinfer.tasks.bench.profile.run import profile_backend
from flexinfer.tasks.roofline import step_cost
from tests.support.cuda import LIMITS, cast, wide_on_cuda
from tests.support.engines import assert_idle, request
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

pytestmark = pytest.mark.gpu
Open = Callable[..., Engine]
PROMPTS = prompts_of(*range(10, 18))
GIVEN: dict[str, Any] = {"max_new_tokens": 60, "temperature": 1.0, "seed": 3}
REQUESTS = [request(prompt, **GIVEN) for prompt in PROMPTS]


def profile_of(engine: Engine) -> Profile:
    """Profile between two calls, which must not differ."""
    backend = FlexBackend(engine)
    before = backend.generate(REQUESTS)
    found = profile_backend(backend, Subject(requests=REQUESTS))
    assert_idle(engine)
    assert backend.generate(REQUESTS) == before
    return found


def check(found: Profile) -> None:
    """Check what holds for every way to attend."""
    step, call = found.step, found.call
    assert found.timed_by == "device"
    assert step.graph
    assert step.rows == len(PROMPTS)
    total = sum(row.us_step for row in found.ops)
    assert total == pytest.approx(step.busy_us)
    assert step.traced_step_us is not None
    assert step.traced_gaps_us is not None
    # Tiny kernels: gaps are much of an unprofiled step, so the sum is held against the traced one.
    assert total + step.traced_gaps_us == pytest.approx(step.traced_step_us, rel=0.25)
    assert total < 1.25 * step.step_us
    assert call is not None, found.remarks
    assert 0 < call.busy_share <= call.fed_share <= 1
    assert call.kernels > 59 * 0.8 * (step.kernels or 0)
    assert call.in_step_gaps_s >= 0
    assert call.outside_s >= 0


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_of_the_own_kernels(family: str, open_engine: Open) -> None:
    engine = open_engine(wide_on_cuda(family), **dict(LIMITS) | {"attention": "triton"})
    found = profile_of(engine)
    check(found)
    assert found.remarks == ()
    rows = {row.name: row for row in found.ops}
    layers = 8 if family == "gemma4" else 4
    calls = {name: sum(r.calls for r in found.ops if r.name == name) for name in rows}
    assert calls["attention"] == calls["qkv product"] == calls["norm, rope, KV write"] == layers
    assert calls["o product"] == calls["down product"] == calls["gate, up, act"] == layers
    assert rows["look-up"].kernels == 1
    assert rows["sample"].kernels == 2
    assert rows["norm, rope, KV write"].kernels == rows["norm, rope, KV write"].calls
    assert all(row.gb_per_s for row in found.ops if row.name != "other")
    assert found.step.kernels_per_layer is not None


@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_other_back_ends(attention: str, open_engine: Open) -> None:
    found = profile_of(
        open_engine(wide_on_cuda("qwen3"), **dict(LIMITS) | {"attention": attention})
    )
    check(found)
    compiled = attention == "flex"
    assert any("compiled" in remark for remark in found.remarks) == compiled
    assert any(row.name == "attention" for row in found.ops) != compiled


def test_operations_are_the_captured_step_where_kernels_are_not_tiny(open_engine: Open) -> None:
    sizes = {
        "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 128, "num_hidden_layers": 2,
        "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 65536,
        "initializer_range": 0.02,
    }  # fmt: skip
    model = cast(FAMILIES["llama"](**sizes), torch.bfloat16)
    engine = open_engine(model, **dict(LIMITS) | {"attention": "triton"})
    cost = step_cost(model, build_decoder(model).specs)
    backend, subject = FlexBackend(engine), Subject(requests=REQUESTS, cost=cost, bandwidth=4e12)
    found = profile_backend(backend, subject)
    step = found.step
    assert sum(row.us_step for row in found.ops) == pytest.approx(step.step_us, rel=0.25)
    assert step.floor_us is not None
    assert step.floor_us < step.step_us
    assert step.ops_over_us is not None
    assert step.beyond_floor_us is not None
    assert step.gaps_us is not None
    parts = step.ops_over_us + step.beyond_floor_us + step.gaps_us
    assert parts == pytest.approx(step.over_floor_us)


def test_without_graphs(open_engine: Open) -> None:
    settings = dict(LIMITS) | {"attention": "triton", "cuda_graphs": False}
    found = profile_of(open_engine(wide_on_cuda("llama"), **settings))
    assert not found.step.graph
    assert found.call is not None
    assert 0 < found.call.busy_share <= 1
