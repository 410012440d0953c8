"""Engines that prefill by FA4 (a stand-in): the oracle's ids, what is said, what is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.attention import choose_fa4
from flexinfer.engine import engine as home
from flexinfer.engine import fa4 as engine_fa4
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps import prefill
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory, UsageError
from tests.engine.steps.test_prefill_graphs import Captured, Replayed
from tests.support.engines import (
    assert_greedy,
    complete,
    ids_of,
    machinery,
    make_engine,
    request,
    tiny,
)
from tests.support.fa4 import HOPPER, KEPT, flash_attn_varlen_func, install
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
families = pytest.mark.parametrize("family", FAMILIES)
PROMPTS = prompts_of(1, 7, 8, 9, 20, 33, 41)
ON: dict[str, Any] = {"fa4_prefill": True}
GEMMA_KINDS, CPU_TILE = 2, 32


def notice(engine: Engine) -> str:
    """Return what is said of FA4."""
    (said,) = [line for line in engine.notices if "fa4" in line.lower()]
    return said


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

    def capture(step: Callable[[], Any], pool: object, stats: object) -> Any:
        out = torch.full_like(step(), -1)
        return Replayed(step, out), out

    monkeypatch.setattr(home, "PrefillRunner", Captured)
    monkeypatch.setattr(prefill, "capture", capture)
    monkeypatch.setattr(prefill, "GRAPH_STEP", 24)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    engine = open_engine(family, **ON)
    calls.clear()
    assert_greedy(family, PROMPTS, complete(engine, PROMPTS, max_new_tokens=6))
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


@pytest.mark.parametrize(("batch", "trials"), [(8, [5]), (246, [5]), (247, [5, 261])])
def test_what_many_short_prompts_run_is_tried_too(
    batch: int, trials: list[int], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch)
    """A step of 128 tokens is padded to 256: 8 tiles, one a row, and two."""
    open_engine("qwen3", prefill_tokens=128, max_batch_size=batch, max_seq_length=16, **ON)
    assert [len(call["cu_seqlens_q"]) for call in calls] == trials


@pytest.mark.parametrize("given", [{}, {KEPT[1]: "/mine"}, {KEPT[0]: "0"}], ids=str)
def test_what_fa4_compiles_is_kept_unless_told_otherwise(
    given: dict[str, str], open_engine: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    own = tmp_path / "flexinfer" / "flash-attn-4" / f"sm_90-cuda-{torch.version.cuda}"
    open_engine("qwen3", **ON)
    found = {name: os.environ[name] for name in KEPT if name in os.environ}
    usual = {KEPT[0]: "1", KEPT[1]: str(own)}
    assert found == (given if KEPT[0] in given else usual | given)
    assert own.is_dir() is (found == usual)
    assert not own.is_dir() or own.stat().st_mode & 0o777 == 0o700


def in_the_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "flexinfer").write_text("")


def not_writable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(dir: Path) -> Any:
        raise PermissionError(dir)

    monkeypatch.setattr(engine_fa4, "TemporaryFile", refused)


def without_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Any, kind: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(engine_fa4, "flock", refused)


@pytest.mark.parametrize("spoil", [in_the_way, not_writable, without_locks])
def test_a_folder_that_will_not_do_keeps_nothing(
    spoil: Callable[..., None],
    open_engine: Open,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    install(monkeypatch)
    spoil(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert notice(open_engine("qwen3", **ON)).startswith("FA4 prefill: on")
    assert not set(KEPT) & set(os.environ)


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
    assert notice(asked) == "FA4 prefill: off (--attention dense)"
    windows = open_engine(
        FAMILIES["qwen3"](use_sliding_window=True, sliding_window=8, max_window_layers=0),
        attention="auto",
    )
    assert notice(windows) == "FA4 prefill: off (not measured with windows)"


def test_auto_falls_back_aloud_where_it_does_not_work(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*tensors: Any, **given: Any) -> Any:
        raise TypeError("unexpected keyword")

    install(monkeypatch, function=broken)
    monkeypatch.setattr(choose_fa4, "MEASURED_FASTER", {((9, 0), 16, 2): 64})
    engine = open_engine("qwen3", attention="auto")
    assert notice(engine) == (
        "FA4 prefill: off (flash-attn-4 does not work here: TypeError: unexpected keyword)"
    )
    assert_greedy("qwen3", PROMPTS, complete(engine, PROMPTS, max_new_tokens=4))


def test_layers_with_and_without_a_window_are_tried(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch)
    mixed = FAMILIES["qwen3"](use_sliding_window=True, sliding_window=8, max_window_layers=1)
    open_engine(mixed, prefill_tokens=64, **ON)
    assert [call["window_size"] for call in calls] == [(None, None), (7, 0)]


def test_a_trial_without_memory_is_exit_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*tensors: Any, **given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    install(monkeypatch, function=full)
    with pytest.raises(NotEnoughMemory) as caught:
        make_engine("qwen3", **ON)
    assert caught.value.exit_code == 4


def test_a_device_that_the_trial_broke_is_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    cause = EnvironmentUnfit("it does not work here")
    engine_fa4._check_alive(torch.device("cpu"), cause)
    with pytest.raises(EnvironmentUnfit, match="does not work here") as caught:
        engine_fa4._check_alive(torch.device("cuda"), cause)
    assert "--no-fa4-prefill" in (caught.value.hint or "")


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
    with pytest.raises(EnvironmentUnfit, match="no head dim 512 on sm_90"):
        make_engine(wide, **ON)


@pytest.mark.parametrize("result", ["wrong", "import", "raises"])
def test_forced_and_broken_is_exit_3(result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(q: Any, *rest: Any, **given: Any) -> Any:
        if result == "raises":
            raise RuntimeError("ptxas: unknown option")
        return torch.zeros_like(q)

    install(monkeypatch, function=broken)
    if result == "import":
        monkeypatch.delitem(sys.modules, "flash_attn.cute")
    with pytest.raises(EnvironmentUnfit, match="does not work here") as caught:
        make_engine("llama", **ON)
    assert {"wrong": "wrong by", "import": "ModuleNotFound", "raises": "ptxas"}[result] in str(
        caught.value
    )


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
