"""Memory that adapters take: counted before the KV cache is, refused with a cure, given back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flexinfer.attention.cache import bytes_per_page
from flexinfer.engine import setup
from flexinfer.engine.engine import Engine
from flexinfer.engine.memory import SHARE
from flexinfer.errors import NotEnoughMemory
from flexinfer.models.catalog import build_decoder
from flexinfer.weights import place
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.adapters.merged import MergedWeights
from flexinfer.weights.adapters.runtime import RuntimeWeights
from tests.engine import test_nf4 as four
from tests.engine.test_adapters import MODES, PROMPTS, engine_over
from tests.support.engines import complete, machinery, tiny

modes = pytest.mark.parametrize("mode", MODES)


def held(engine: Engine) -> list[torch.Tensor]:
    """Return the tensors that an adapter's weights brought."""
    weights: Any = machinery(engine).weights.weights
    if isinstance(weights, MergedWeights):
        return [leaf.weight for leaf in weights._copies.values()]
    assert isinstance(weights, RuntimeWeights)
    shared = {leaf.a.data_ptr(): leaf.a for leaf in weights._leaves.values()}
    return [*shared.values(), *(leaf.b for leaf in weights._leaves.values())]


def assert_freed(make: Callable[[], Engine]) -> None:
    """Fail unless closing an engine frees what its adapter took, though the engine is kept."""
    engine = make()
    complete(engine, PROMPTS, max_new_tokens=2)
    engine.refresh()
    tensors = held(engine)
    weights = machinery(engine).weights.weights
    assert weights is not None
    assert weights.n_bytes == sum(tensor.nbytes for tensor in tensors) > 0
    alive = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    del tensors, weights
    gc.collect()
    assert not any(storage.expired() for storage in alive)
    engine.close()
    gc.collect()
    assert all(storage.expired() for storage in alive), "close() keeps an adapter's memory"
    assert engine.notices


@modes
def test_closing_gives_the_copies_back(mode: str) -> None:
    assert_freed(lambda: engine_over(tiny("gemma4"), "random:4", mode))


@modes
def test_closing_gives_the_copies_of_4_bit_weights_back(mode: Any, tmp_path: Path) -> None:
    model = four.four_bits("qwen3", tmp_path)
    assert_freed(lambda: four.engine_over(replace(model, adapter=AdapterChoice("random:4", mode))))


@modes
def test_the_cache_is_planned_over_what_the_copies_leave(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free memory that the plan sees is of a moment when the adapter's weights lie there."""
    model, seen = tiny("qwen3"), list[int]()
    page = bytes_per_page(build_decoder(model).specs, 8, torch.float32)
    total = 64 * 2**20

    def taken() -> int:
        gc.collect()
        kinds = (MergedWeights, RuntimeWeights)
        return sum(x.n_bytes for x in gc.get_objects() if isinstance(x, kinds))

    def available(device: torch.device) -> int:
        seen.append(taken() - others)
        return total - seen[-1]

    others = taken()

    monkeypatch.setattr(setup, "available_bytes", available)
    settings = {"max_batch_size": 512, "max_seq_length": 1000, "prefill_tokens": 64}
    with engine_over(model, "random:4", mode, **settings) as engine:
        weights = machinery(engine).weights.weights
        assert weights is not None
        assert seen == [weights.n_bytes]
        reserve = 64 * 64 * 64 * 4 + 512 * 512 * 4 * 8
        budget = int((total - weights.n_bytes - reserve) * SHARE)
        assert machinery(engine).programs.cache.n_pages == budget // page
        assert any("memory is short" in line for line in engine.notices)


def test_copies_that_do_not_fit_are_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_over(tiny("qwen3"), "random:4", "merged") as engine:
        needed = sum(tensor.nbytes for tensor in held(engine))
    for free in (needed - 1, 0):
        monkeypatch.setattr(place, "available_bytes", lambda device, free=free: free)
        with pytest.raises(NotEnoughMemory, match="merged copies of the adapter's tar") as caught:
            engine_over(tiny("qwen3"), "random:4", "merged")
        assert "--lora-mode runtime" in str(caught.value.hint)
        assert caught.value.exit_code == 4
    engine_over(tiny("qwen3"), "random:4", "runtime").close()
    monkeypatch.setattr(place, "available_bytes", lambda device: needed)
    engine_over(tiny("qwen3"), "random:4", "merged").close()


def test_copies_of_4_bit_weights_count_as_what_they_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = four.four_bits("qwen3", tmp_path)
    given = replace(model, adapter=AdapterChoice("random:4", "merged"))
    with four.engine_over(given) as engine:
        needed = sum(tensor.nbytes for tensor in held(engine))
    monkeypatch.setattr(place, "available_bytes", lambda device: needed - 1)
    with pytest.raises(NotEnoughMemory, match="merged copies"):
        four.engine_over(given)


def test_copies_that_run_out_on_the_way_have_the_same_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(MergedWeights, "_copy", failing)
    with pytest.raises(NotEnoughMemory, match="merged copies of the adapter's tar") as caught:
        engine_over(tiny("qwen3"), "random:4", "merged")
    assert "--lora-mode runtime" in str(caught.value.hint)
