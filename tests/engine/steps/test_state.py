"""What the device knows of slots: set for the admitted ones, kept for the others; seeds."""

from __future__ import annotations

import pytest
import torch

from flexinfer.config import SamplingParams
from flexinfer.engine.requests.seeds import mix
from flexinfer.engine.steps.state import SlotState, kind_of
from flexinfer.kernels.sampler import SamplerKind

CPU = torch.device("cpu")


def test_admitted_slots_get_their_parameters() -> None:
    state = SlotState(4, 20, CPU)
    first = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    second = SamplingParams(temperature=2.0)
    state.admit([3, 1], [first, second], [2**62 + 1, 7])
    rows = state.tensors.sampler_rows(torch.tensor([1, 3, 4]), torch.tensor([9, 8, 0]))
    assert rows.temperature.tolist() == pytest.approx([2.0, 0.7, 0.0])
    assert rows.top_k.tolist() == [0, 5, 0]
    assert rows.top_p.tolist() == pytest.approx([1.0, 0.9, 1.0])
    assert rows.min_p.tolist() == pytest.approx([0.0, 0.1, 0.0])
    assert rows.penalty.tolist() == pytest.approx([1.0, 1.2, 1.0])
    assert rows.seed.tolist() == [7, 2**62 + 1, 0]
    assert rows.position.tolist() == [9, 8, 0]


def test_a_later_tenant_replaces_everything() -> None:
    state = SlotState(2, 20, CPU)
    before = [tensor.data_ptr() for tensor in state.tensors]
    state.admit([1], [SamplingParams(temperature=0.7, top_k=5, top_p=0.5, min_p=0.1)], [3])
    state.admit([1], [SamplingParams()], [0])
    fresh = SlotState(2, 20, CPU)
    assert all(torch.equal(a, b) for a, b in zip(state.tensors, fresh.tensors, strict=True))
    assert [tensor.data_ptr() for tensor in state.tensors] == before


def test_seen_tokens_are_those_of_the_tenant() -> None:
    state = SlotState(2, 10, CPU)
    state.track_seen()
    assert state.seen is not None
    address = state.seen.data_ptr()
    state.remember(1, [3, 3, 9])
    state.remember(0, [1])
    state.remember(1, [2, 0])
    state.track_seen()
    assert state.seen.data_ptr() == address
    assert [row.nonzero()[:, 0].tolist() for row in state.seen] == [[1], [0, 2], []]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, SamplerKind.GREEDY),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.1}, SamplerKind.GREEDY),
        ({"temperature": 1.0}, SamplerKind.RANDOM),
        ({"temperature": 1.0, "top_k": -1}, SamplerKind.RANDOM),
        ({"temperature": 1.0, "top_k": 5}, SamplerKind.TRUNCATED),
        ({"temperature": 1.0, "top_p": 0.5}, SamplerKind.TRUNCATED),
        ({"temperature": 1.0, "min_p": 0.1}, SamplerKind.TRUNCATED),
        ({"repetition_penalty": 1.1}, SamplerKind.TRUNCATED),
    ],
)
def test_the_least_sampler_that_serves(given: dict[str, float], kind: SamplerKind) -> None:
    assert kind_of(SamplingParams(**given)) == kind


def test_seeds_do_not_collide() -> None:
    seeds = {mix(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mix(1, 2) != mix(2, 1)
    assert mix(2**63 - 1) != mix(-1)
    assert mix(7, 0) != mix(7)
