"""Memory: pages are planned before anything is allocated, and prefill never holds all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexinfer.attention.cache import PagedKVCache, bytes_per_page
from flexinfer.config import EngineConfig
from flexinfer.engine import setup
from flexinfer.engine.engine import Engine
from flexinfer.engine.memory import PagePlan, plan_pages
from flexinfer.errors import NotEnoughMemory
from flexinfer.models.catalog import build_decoder
from tests.support.engines import complete, loaded, machinery, make_engine, tiny
from tests.support.prompts import prompts_of
from tests.support.tiny import FULL, SLIDING, tiny_gemma4

Open = Callable[..., Engine]
PLENTY = {"wanted": 100, "least": 10, "page_bytes": 1000, "granted": None, "reserve": 5000}


@pytest.mark.parametrize(
    ("given", "n_pages", "limited"),
    [
        ({"available": 10**9}, 100, False),
        ({"available": 5000 + 60_000}, 54, True),
        ({"available": 10**9, "granted": 10**8}, 100, False),
        ({"available": 10**9, "granted": 50_999}, 50, True),
        ({"available": 50_000, "granted": 50_000}, 50, True),
        ({"available": 10**9, "granted": 10_000}, 10, True),
    ],
)
def test_planned_pages(given: dict[str, int], n_pages: int, limited: bool) -> None:
    assert plan_pages(**PLENTY | given) == PagePlan(n_pages, n_pages * 1000, limited)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"available": 10**6, "granted": 2 * 10**6}, ("--kv-memory", "1.9 MiB", "976.6 KiB")),
        ({"available": 10**9, "granted": 9_999}, ("--kv-memory", "9.8 KiB", "10 pages")),
        ({"available": 10_000}, ("free memory", "4.4 KiB", "9.8 KiB", "10 pages")),
        ({"available": 100}, ("free memory", "0.0 KiB")),
    ],
)
def test_too_little_is_refused_with_figures(given: dict[str, int], words: tuple[str, ...]) -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        plan_pages(**PLENTY | given)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "--kv-memory" in str(caught.value.hint)


class Untouched(TorchDispatchMode):
    """Fails when a tensor of `limit` bytes or more is allocated."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.largest = limit, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in tensors((args, kwargs))}
        for leaf in tensors(out):
            storage = leaf.untyped_storage()
            if storage.data_ptr() not in given:
                self.largest = max(self.largest, storage.nbytes())
                assert storage.nbytes() < self.limit, f"{func}: {tuple(leaf.shape)}"
        return out


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_memory": 2**40}, "1024.0 GiB"),
        ({"kv_memory": 2**30, "free": 2**29}, "512.0 MiB available"),
        ({"kv_memory": 1000}, "13 pages"),
        ({"free": 2**10}, "free memory leaves room for 0.0 KiB"),
    ],
)
def test_an_engine_that_does_not_fit_allocates_nothing(
    settings: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dict(settings)
    free = settings.pop("free", 2**34)
    monkeypatch.setattr(setup, "available_bytes", lambda device: free)
    model = tiny("qwen3")
    with Untouched(4096) as watched, pytest.raises(NotEnoughMemory, match=words):
        make_engine(model, **settings)
    assert watched.largest > 0


def test_kv_memory_counts_every_page(open_engine: Open) -> None:
    page_bytes = bytes_per_page(build_decoder(tiny("qwen3")).specs, 8, torch.float32)
    engine = open_engine("qwen3", kv_memory=20 * page_bytes + page_bytes - 1)
    held = machinery(engine)
    assert held.programs.cache.n_pages == held.scheduler.pool.n_pages == 20
    assert any("20 pages of 8 tokens" in line and "152 tokens" in line for line in engine.notices)
    assert any("memory is short" in line for line in engine.notices)


def test_no_more_pages_than_the_work_needs(open_engine: Open) -> None:
    engine = open_engine("qwen3", max_batch_size=2, max_seq_length=20)
    assert machinery(engine).programs.cache.n_pages == 2 * 3 + 1
    assert not any("short" in line for line in engine.notices)


VOCAB, PROMPTS, LENGTH = 262_144, 64, 512


def test_prefill_of_a_large_vocabulary_keeps_last_rows_only() -> None:
    """64 x 512 tokens times 262,144 logits in fp32 would be 34 GB; those of one step, 2 GB."""
    model = tiny_gemma4(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=4,
        layer_types=[SLIDING, FULL, SLIDING, FULL], num_kv_shared_layers=2,
        vocab_size_per_layer_input=64, hidden_size_per_layer_input=0, global_head_dim=16,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    config = EngineConfig(
        max_batch_size=PROMPTS, max_seq_length=LENGTH + 8, page_size=64, prefill_tokens=2048
    )
    prompts = prompts_of(*[LENGTH] * PROMPTS)
    with Engine(loaded(model), config) as engine, Untouched(PROMPTS * VOCAB * 4 + 1) as watched:
        found = complete(engine, prompts, max_new_tokens=2)
        assert engine.stats.prefill_tokens == PROMPTS * LENGTH
    assert watched.largest == PROMPTS * VOCAB * 4
    assert len({completion.token_ids for completion in found}) > PROMPTS / 2


def test_a_cache_lies_where_the_plan_says() -> None:
    specs = build_decoder(tiny("gemma4")).specs
    cache = PagedKVCache(specs, 7, 8, torch.float32, torch.device("cpu"))
    held = {pool.data_ptr(): pool.nbytes for spec in specs for pool in cache.layer(spec)}
    assert sum(held.values()) == 7 * bytes_per_page(specs, 8, torch.float32)
