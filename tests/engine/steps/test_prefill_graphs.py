"""Prefill steps as graphs, with plain calls in place of captures: same ids, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.core.step import Chunk
from flexinfer.engine import engine as home
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps import prefill
from flexinfer.engine.steps.prefill import PrefillRunner
from flexinfer.kernels.sampler import SamplerKind
from tests.support.engines import complete, ids_of
from tests.support.prompts import prompts_of
from tests.support.traces import watch

Open = Callable[..., Engine]
RANDOM: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 4}
CUT = RANDOM | {"top_k": 40, "top_p": 0.95}
PENALISED = CUT | {"repetition_penalty": 1.5}
CALLS = (PENALISED, CUT, PENALISED, {"max_new_tokens": 12}, RANDOM, CUT)


class Replayed:
    """Runs a step where a graph would be replayed, into the tensor that was returned."""

    def __init__(self, step: Callable[[], Tensor], out: Tensor) -> None:
        self.step, self.out = step, out

    def replay(self) -> None:
        self.out.copy_(self.step())

    def pool(self) -> tuple[int, int]:
        return (0, 0)


class Captured(PrefillRunner):
    """A runner that captures on any device; `kept_rows` as there."""

    def run(self, chunks: Sequence[Chunk], kept_rows: int, kind: SamplerKind) -> Tensor:
        self._graphs = True
        return super().run(chunks, 8, kind)


def as_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Tensor]]:
    """Make engines run their prefill steps as graphs; return the steps captured so far."""
    captured: list[Callable[[], Tensor]] = []

    def capture(step: Callable[[], Tensor], pool: object, stats: object) -> tuple[Replayed, Tensor]:
        captured.append(step)
        for _ in range(2):
            step()
        out = torch.full_like(step(), -1)
        return Replayed(step, out), out

    monkeypatch.setattr(home, "PrefillRunner", Captured)
    monkeypatch.setattr(prefill, "capture", capture)
    monkeypatch.setattr(prefill, "GRAPH_STEP", 24)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return captured


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Tensor]]:
    """Return the steps that engines have captured so far."""
    return as_graphs(monkeypatch)


@pytest.mark.parametrize("family", ["qwen3", "gemma4"])
def test_graphs_sample_what_plain_calls_do(
    family: str, captures: list[Callable[[], Tensor]], open_engine: Open
) -> None:
    """Whatever the sampler, in the call that captures and in those that replay."""
    graphs, prompts = open_engine(family), prompts_of(9, 5, 20)
    found = [ids_of(complete(graphs, prompts, **given)) for given in CALLS]
    assert len(captures) == len(SamplerKind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "PrefillRunner", PrefillRunner)
        plain = open_engine(family)
    assert found == [ids_of(complete(plain, prompts, **given)) for given in CALLS]
    assert len({tuple(ids) for ids in found}) == 4


@pytest.mark.usefixtures("captures")
def test_capturing_leaves_no_trace(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is run several times, and each would mark its token as one that was seen."""
    engine = open_engine("qwen3")
    changed = watch(engine, monkeypatch)
    for given in CALLS:
        complete(engine, prompts_of(9, 5, 20), **given)
    assert changed == [0] * len(SamplerKind)
