"""The engine as a guest on CUDA: waits for nothing, changes nothing, gives its memory back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from flexinfer.engine.engine import Engine
from flexinfer.engine.steps.loop import Loop
from flexinfer.errors import NotEnoughMemory
from tests.support.cuda import LIMITS, cast, tiny_on_cuda, wide_on_cuda
from tests.support.engines import OVERRIDES, assert_greedy, assert_idle, complete, request
from tests.support.oracle import hf_logits
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES
from tests.support.untouched import describe

pytestmark = pytest.mark.gpu
Open = Callable[..., Engine]
PROMPTS = prompts_of(9, 3, 17, 40)
GREEDY: dict[str, Any] = {"max_new_tokens": 20}
SAMPLERS = [
    GREEDY,
    GREEDY | {"temperature": 1.0, "n": 3},
    GREEDY | {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
    GREEDY | {"repetition_penalty": 1.2},
]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make every operation that waits for the device raise."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_waiting_sees_a_wait() -> None:
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device="cuda").item()


@pytest.mark.parametrize("given", SAMPLERS, ids=str)
@pytest.mark.parametrize("attention", ["dense", "flex", "triton"])
def test_no_launch_waits_for_the_device(
    attention: str, given: dict[str, Any], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense prefill reads counts on the host by design; nothing else may wait."""
    engine = open_engine(wide_on_cuda("gemma4"), **dict(LIMITS) | {"attention": attention})
    requests = [request(p, **given) for p in PROMPTS]
    engine.generate(requests)
    real, watched = Loop._launch, []

    def launch(self: Loop, step: Any) -> Any:
        if attention == "dense" and step.chunks:
            return real(self, step)
        watched.append(step)
        with no_waiting():
            return real(self, step)

    monkeypatch.setattr(Loop, "_launch", launch)
    engine.generate(requests)
    assert len(watched) >= 19


def test_the_next_step_is_launched_before_the_last_is_read(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    launch, collect = Loop._launch, Loop._collect

    def launched(self: Loop, step: Any) -> Any:
        events.append("launch")
        return launch(self, step)

    def collected(self: Loop, step: Any) -> Any:
        events.append("read")
        return collect(self, step)

    monkeypatch.setattr(Loop, "_launch", launched)
    monkeypatch.setattr(Loop, "_collect", collected)
    complete(open_engine(tiny_on_cuda("qwen3"), **LIMITS), PROMPTS, **GREEDY)
    assert events == ["launch", *["launch", "read"] * 19, "read"]


@pytest.mark.parametrize("attention", ["dense", "flex", "triton"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_leaves_the_module_alone(
    family: str, training: bool, attention: str, open_engine: Open
) -> None:
    sizes = {"hidden_size": 128, "head_dim": 64, "initializer_range": 0.2}
    extra = {"global_head_dim": 64} if family == "gemma4" else {}
    model = FAMILIES[family](**OVERRIDES.get(family, {}) | sizes | extra)
    model = cast(model, torch.bfloat16).train(training)
    if training:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
    logits = hf_logits(model, PROMPTS[0])
    torch.randn(3, device="cuda")
    before = describe(model)
    engine = open_engine(model, **dict(LIMITS) | {"attention": attention})
    for given in SAMPLERS:
        engine.generate([request(p, **given) for p in PROMPTS])
        assert describe(model) == before
    engine.close()
    assert describe(model) == before
    assert torch.equal(hf_logits(model, PROMPTS[0]), logits)
    assert engine.stats.graph_replays > 0


def allocated() -> int:
    """Return the bytes that live tensors hold on the device."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("attention", ["dense", "flex", "triton"])
def test_close_gives_everything_back(attention: str, open_engine: Open) -> None:
    model = wide_on_cuda("gemma4")
    settings = dict(LIMITS) | {"attention": attention, "max_seq_length": 1024}
    levels = []
    for _ in range(3):
        before = allocated()
        engine = open_engine(model, **settings)
        assert allocated() > before + 2**20
        complete(engine, PROMPTS, **GREEDY)
        engine.close()
        del engine
        gc.collect()
        torch.cuda.empty_cache()
        levels.append(allocated())
    # What libraries keep (workspaces, compiled constants) stays after the first time only.
    assert levels[0] == levels[1] == levels[2]
    assert levels[0] - before < 64 * 2**20


@pytest.mark.parametrize("attention", ["dense", "flex", "triton"])
def test_rounds_do_not_add_up(attention: str, open_engine: Open) -> None:
    engine = open_engine(wide_on_cuda("gemma4"), **dict(LIMITS) | {"attention": attention})
    levels = []
    for _ in range(8):
        for given in SAMPLERS:
            engine.generate([request(p, **given) for p in PROMPTS])
        levels.append(allocated())
    assert levels[1] == levels[-1]


def test_kv_memory_beyond_the_device_is_refused_before_allocation(open_engine: Open) -> None:
    model, before = tiny_on_cuda("qwen3"), allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(NotEnoughMemory, match=r"--kv-memory asks for .* GiB, the device has"):
        open_engine(model, kv_memory=total * 2, **LIMITS)
    with pytest.raises(NotEnoughMemory, match=r"--kv-memory holds"):
        open_engine(model, kv_memory=4096, **LIMITS)
    assert allocated() == before


def test_any_number_of_tiles_is_one_compilation(open_engine: Open) -> None:
    """Tiles hold 128 queries; one tile alone and several are what may differ."""
    settings = dict(LIMITS) | {"attention": "flex", "max_seq_length": 1000}
    engine = open_engine(wide_on_cuda("qwen3"), **settings)
    for length in (100, 200):
        complete(engine, prompts_of(length), max_new_tokens=1)
    before = counters["stats"]["unique_graphs"]
    assert before > 0
    for length in (300, 120, 400, 130, 950, 600, 5):
        complete(engine, prompts_of(length), max_new_tokens=1)
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_caller_that_walks_away(taken: int, open_engine: Open) -> None:
    model = tiny_on_cuda("llama")
    engine = open_engine(model, **dict(LIMITS) | {"max_batch_size": 3})
    stream = engine.stream([request(p, max_new_tokens=5 + i) for i, p in enumerate(PROMPTS)])
    for _ in range(taken):
        next(stream)
    stream.close()
    assert_idle(engine)
    assert_greedy(model, PROMPTS, complete(engine, PROMPTS, **GREEDY))
