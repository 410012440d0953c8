"""Engines that prefill by FA4 (a stand-in): the oracle's ids, what is said, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexinfer.attention import choose_fa4
from flexinfer.engine.engine import Engine
from flexinfer.errors import EnvironmentUnfit, UsageError
from tests.engine.steps.test_prefill_graphs import as_graphs
from tests.support.engines import (
    assert_greedy,
    complete,
    ids_of,
    machinery,
    make_engine,
    request,
    tiny,
)
from tests.support.fa4 import HOPPER, flash_attn_varlen_func, install, notice
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
families = pytest.mark.parametrize("family", FAMILIES)
PROMPTS = prompts_of(1, 7, 8, 9, 20, 33, 41)
ON: dict[str, Any] = {"fa4_prefill": True}
GEMMA_KINDS, CPU_TILE = 2, 32


@families
@pytest.mark.parametrize("chunk", [16384, 16, 7])
def test_lengths_across_every_edge(
    family: str, chunk: int, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch)
    engine = open_engine(family, prefill_tokens=chunk, **ON)
    tried = len(calls)
    many = 2 if chunk > 256 * CPU_TILE else 1
    assert tried == many * (GEMMA_KINDS if family == "gemma4" else 1)
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=12))
    layers = len(machinery(engine).programs.prefill_decoder.specs)
    prefilled = len(calls) - tried
    assert prefilled % engine.stats.prefill_steps == 0
    assert 0 < prefilled // engine.stats.prefill_steps <= layers
    assert (engine.stats.prefill_steps > 1) is (chunk < 100)


@families
def test_prompts_that_share_pages(
    family: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later samples of a prompt, and those that come back after a preemption, read others' KV."""
    install(monkeypatch)
    given: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3, "n": 3}
    found = []
    for settings in (ON, {"fa4_prefill": None}):
        engine = open_engine(family, prefill_tokens=16, max_batch_size=4, **settings)
        outputs = engine.generate([request(prompt, **given) for prompt in PROMPTS])
        found.append([ids_of(output.outputs) for output in outputs])
    assert found[0] == found[1]


@families
def test_padded_steps_are_whole_and_finite(
    family: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUDA graphs do: a pad slot fills up. The stand-in leaves NaN where nothing is asked."""
    calls = install(monkeypatch)

    captured = as_graphs(monkeypatch)
    engine = open_engine(family, **ON)
    calls.clear()
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=6))
    assert captured
    assert {int(call["cu_seqlens_q"][-1]) % 24 for call in calls} == {0}
    pools = machinery(engine).programs.cache._pools.values()
    assert all(pool.isfinite().all() for pair in pools for pool in pair)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_wrong_boundary_is_seen(
    shift: int, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial is passed (its fault begins later), the comparison with the oracle is not."""
    trials: list[int] = []

    def wrong(*tensors: Any, **given: Any) -> Any:
        if trials:
            starts = given["cu_seqlens_q"].clone()
            starts[1:-1] = (starts[1:-1] + shift).clamp(0, int(starts[-1]))
            given["cu_seqlens_q"] = starts.cummax(0).values
            room = given["page_table"].shape[1] * 8
            given["seqused_k"] = torch.maximum(given["seqused_k"], starts.diff()).clamp(max=room)
        return flash_attn_varlen_func(*tensors, **given)

    install(monkeypatch, function=wrong)
    engine = open_engine("qwen3", **ON)
    trials.append(1)
    prompts = prompts_of(20, 25, 33)
    with pytest.raises(AssertionError, match="prompt of"):
        assert_greedy("qwen3", prompts, complete(engine, prompts, max_new_tokens=6))


def test_what_runs_is_said(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    said = notice(open_engine("qwen3", **ON))
    assert said.startswith("FA4 prefill: on, flash-attn-4 4.0.0b36 (asked for; called directly")
    assert notice(open_engine("qwen3")).startswith("FA4 prefill: off (not measured faster on sm_90")
    off = open_engine("qwen3", fa4_prefill=False)
    assert notice(off) == "FA4 prefill: off (--no-fa4-prefill)"


def test_nothing_is_said_where_nobody_asked(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any("fa4" in line.lower() for line in open_engine("qwen3").notices)
    install(monkeypatch, HOPPER._replace(fa4=None))
    assert not any("fa4" in line.lower() for line in open_engine("qwen3").notices)


def test_auto_takes_it_where_it_was_measured_faster(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch)
    monkeypatch.setattr(choose_fa4, "MEASURED_FASTER", {((9, 0), 16, 2): 64})
    engine = open_engine("llama", attention="auto")
    assert "on, flash-attn-4 4.0.0b36 (measured faster on sm_90" in notice(engine)
    calls.clear()
    complete(engine, PROMPTS, max_new_tokens=2)
    assert calls
    assert "not measured faster" in notice(open_engine("gemma4", attention="auto"))
    asked = open_engine("llama", attention="dense")
    assert notice(asked) == "FA4 prefill: off (--attention dense was asked for)"
    windows = open_engine(
        FAMILIES["qwen3"](use_sliding_window=True, sliding_window=8, max_window_layers=0),
        attention="auto",
    )
    assert notice(windows) == "FA4 prefill: off (not measured with windows)"


def test_forced_on_an_older_device_warns_and_falls_back(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch, HOPPER._replace(capability=(8, 0)))
    engine = open_engine("qwen3", **ON)
    assert notice(engine).startswith("warning: --fa4-prefill is not in effect: it needs Hopper")
    assert_greedy("qwen3", PROMPTS, complete(engine, PROMPTS, max_new_tokens=4))
    assert not calls


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (HOPPER._replace(fa4=None), "not installed"),
        (HOPPER._replace(fa4="4.0.0b4"), "before beta 5"),
        (HOPPER._replace(half=False), "bfloat16 or float16"),
        (HOPPER._replace(capability=(12, 0)), "sm_120"),
        (HOPPER._replace(capability=None), "CUDA device"),
    ],
)
def test_forced_and_not_to_be_had_is_exit_3(
    facts: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, facts)
    with pytest.raises(EnvironmentUnfit, match=f"--fa4-prefill cannot be had: .*{said}") as caught:
        make_engine("qwen3", **ON)
    assert caught.value.exit_code == 3
    assert caught.value.hint


def test_a_head_dim_that_it_lacks_is_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    wide = FAMILIES["gemma4"](global_head_dim=512)
    with pytest.raises(EnvironmentUnfit, match="no pages at head dim 512 on sm_90"):
        make_engine(wide, **ON)


def test_what_does_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(EnvironmentUnfit, match="not been tested with --batch-invariant"):
        make_engine("qwen3", batch_invariant=True, **ON)
    with pytest.raises(UsageError, match="--prefill-kernel-options") as caught:
        make_engine("qwen3", attention="auto", prefill_kernel_options={"num_warps": 4}, **ON)
    assert caught.value.exit_code == 2


def test_the_module_is_left_alone(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    before = set(dir(tiny("qwen3")))
    complete(open_engine("qwen3", **ON), PROMPTS[:2], max_new_tokens=2)
    assert set(dir(tiny("qwen3"))) == before
