"""Whatever switch is thrown, the answer is the oracle's, and what runs is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps.loop import Loop
from tests.support.engines import (
    assert_greedy,
    complete,
    ids_of,
    loaded,
    machinery,
    request,
    scheduler,
    tiny,
)
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
SWITCHES: list[Any] = [
    {"attention": "auto"},
    {"attention": "dense"},
    {"attention": "dense", "cuda_graphs": False, "fa4_prefill": False},
    {"attention": "dense", "page_size": 32},
    pytest.param({"attention": "flex"}, marks=pytest.mark.slow),
    pytest.param({"attention": "flex", "prefill_tokens": 7}, marks=pytest.mark.slow),
    pytest.param({"attention": "flex", "cuda_graphs": False}, marks=pytest.mark.slow),
]
backends = pytest.mark.parametrize(
    "attention", ["dense", pytest.param("flex", marks=pytest.mark.slow)]
)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_every_switch_knows_the_window(switches: dict[str, Any], open_engine: Open) -> None:
    engine, prompts = open_engine("gemma4", **switches), prompts_of(20, 3)
    assert_greedy("gemma4", prompts, complete(engine, prompts, max_new_tokens=20))
    name = {"auto": "dense"}.get(switches["attention"], switches["attention"])
    (said,) = [line for line in engine.notices if line.startswith("attention: ")]
    assert said.startswith(f"attention: {name} (")
    assert said.endswith("), window 8 and full")


def test_notices_say_what_runs(open_engine: Open) -> None:
    engine = open_engine("gemma4")
    said = "\n".join(engine.notices)
    for word in ("device: test", "attention: dense (asked for)", "CUDA graphs: off", "LoRA: none"):
        assert word in said
    assert "97 pages of 8 tokens" in said
    assert "8 sequences at a time, 96 tokens each" in said
    with Engine(loaded(tiny("gemma4")), EngineConfig(max_batch_size=2)) as other:
        assert any("nothing to compile" in line for line in other.notices)


def test_the_windows_in_use_are_the_models(open_engine: Open) -> None:
    assert machinery(open_engine("gemma4")).programs.windows == (8, None)
    assert machinery(open_engine("llama")).programs.windows == (None,)


@backends
@pytest.mark.parametrize("family", FAMILIES)
def test_slots_with_holes(
    family: str, attention: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only slots 1 and 3 of 8 stay alive: their rows are not zeros, and are the oracle's."""
    alive: list[list[int]] = []
    real = Loop._launch

    def launch(self: Loop, step: Any) -> Any:
        if step.decode:
            alive.append([row.slot for row in step.decode])
        return real(self, step)

    monkeypatch.setattr(Loop, "_launch", launch)
    engine, prompts = open_engine(family, attention=attention), prompts_of(9, 6, 14, 17)
    lengths = (2, 15, 2, 15)
    outputs = engine.generate(
        [request(p, max_new_tokens=n) for p, n in zip(prompts, lengths, strict=True)]
    )
    assert alive == [[0, 1, 2, 3]] + [[1, 3]] * 13
    assert_greedy(family, prompts, [output.outputs[0] for output in outputs])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_ids_do_not_depend_on_the_back_end(family: str, open_engine: Open) -> None:
    prompts = prompts_of(9, 3, 17, 30)
    given = {"max_new_tokens": 20, "temperature": 1.0, "min_p": 0.01, "seed": 5}
    dense, flex = (
        complete(open_engine(family, attention=attention), prompts, **given)
        for attention in ("dense", "flex")
    )
    assert ids_of(dense) == ids_of(flex)


def test_first_come_first_served(open_engine: Open) -> None:
    engine = open_engine("qwen3", max_batch_size=1)
    stream = engine.stream([request(p, max_new_tokens=3) for p in prompts_of(5, 6, 7)])
    assert [output.index for output in stream] == [0, 1, 2]
    assert scheduler(engine).preemptions == 0
