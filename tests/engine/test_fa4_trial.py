"""FA4 is tried when an engine is built: what it runs, what becomes of failures, what it leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.attention import choose_fa4
from flexinfer.engine import fa4 as engine_fa4
from flexinfer.engine.engine import Engine
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory
from tests.support.engines import (
    assert_greedy,
    complete,
    make_engine,
)
from tests.support.fa4 import KEPT, install, notice
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
PROMPTS = prompts_of(1, 7, 8, 9, 20, 33, 41)
ON: dict[str, Any] = {"fa4_prefill": True}


@pytest.mark.parametrize(("batch", "trials"), [(8, [5]), (246, [5]), (247, [5, 261])])
def test_what_many_short_prompts_run_is_tried_too(
    batch: int, trials: list[int], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 128 tokens is padded to 256: 8 tiles, one a row, and two."""
    calls = install(monkeypatch)
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


def open_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = folder / "flexinfer" / "flash-attn-4" / f"sm_90-cuda-{torch.version.cuda}"
    own.mkdir(parents=True)
    own.chmod(0o777)


@pytest.mark.parametrize("spoil", [in_the_way, open_to_others, not_writable, without_locks])
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
    engine_fa4._check_alive(torch.device("cpu"), cause)  # where nothing can be broken
    with pytest.raises(EnvironmentUnfit, match="does not work here") as caught:
        engine_fa4._check_alive(torch.device("cuda"), cause)
    assert "--no-fa4-prefill" in (caught.value.hint or "")


def test_every_failed_trial_asks_whether_the_device_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*tensors: Any, **given: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def dead(device: torch.device, cause: EnvironmentUnfit) -> None:
        raise EnvironmentUnfit(f"dead after: {cause.message}")

    install(monkeypatch, function=failing)
    monkeypatch.setattr(choose_fa4, "MEASURED_FASTER", {((9, 0), 16, 2): 64})
    monkeypatch.setattr(engine_fa4, "_check_alive", dead)
    for wanted in (True, None):
        with pytest.raises(EnvironmentUnfit, match=r"dead after: .*illegal memory"):
            make_engine("qwen3", attention="auto", fa4_prefill=wanted)


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
