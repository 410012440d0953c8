"""The paged cache: what it allocates, and that copies read before they write."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flexinfer.attention.cache import PagedKVCache, bytes_per_page
from flexinfer.attention.spec import LayerSpec
from flexinfer.core.pages import PageCopy
from flexinfer.models.catalog import build_decoder
from tests.support.engines import tiny

PAGE, N_PAGES = 8, 6
OWN = LayerSpec(index=0, heads=4, kv_heads=2, head_dim=16, scale=1.0, window=None, kv_layer=0)
WIDE = LayerSpec(index=1, heads=4, kv_heads=1, head_dim=32, scale=1.0, window=8, kv_layer=1)
BORROWED = replace(OWN, index=2)
SPECS = (OWN, WIDE, BORROWED)


def numbered() -> PagedKVCache:
    """Build a cache in which page p holds p + 100 * layer in K, and its negative in V."""
    cache = PagedKVCache(SPECS, N_PAGES, PAGE, torch.float32, torch.device("cpu"))
    values = torch.arange(N_PAGES).repeat_interleave(PAGE).float()
    for layer, spec in enumerate((OWN, WIDE)):
        k, v = cache.layer(spec)
        k.copy_((values + 100 * layer)[:, None].expand_as(k))
        v.copy_(-k)
    return cache


def contents(cache: PagedKVCache, spec: LayerSpec) -> tuple[list[float], list[float]]:
    """Return the value of each page in K and in V, all of whose entries are the same."""
    found = []
    for pool in cache.layer(spec):
        pages = pool.view(spec.kv_heads, N_PAGES, PAGE, spec.head_dim).transpose(0, 1).flatten(1)
        assert (pages == pages[:, :1]).all()
        found.append(pages[:, 0].tolist())
    return found[0], found[1]


def test_layers_that_borrow_have_no_cache_of_their_own() -> None:
    cache = PagedKVCache(SPECS, N_PAGES, PAGE, torch.float32, torch.device("cpu"))
    assert len(cache) == 2
    assert cache.layer(BORROWED) is cache.layer(OWN)
    assert [t.shape for t in cache.layer(WIDE)] == [(1, 1, 48, 32)] * 2
    assert not any(t.any() for spec in SPECS for t in cache.layer(spec))


@pytest.mark.parametrize(("family", "layers"), [("qwen3", 4), ("llama", 4), ("gemma4", 4)])
def test_as_many_caches_as_layers_that_own_kv(family: str, layers: int) -> None:
    specs = build_decoder(tiny(family)).specs
    cache = PagedKVCache(specs, N_PAGES, PAGE, torch.float32, torch.device("cpu"))
    assert len(cache) == sum(spec.owns_kv for spec in specs) == layers


def test_bytes_of_a_page_are_bytes_of_the_cache() -> None:
    assert bytes_per_page(SPECS, 8, torch.float32) == 2 * 4 * 8 * (2 * 16 + 32)
    assert bytes_per_page(SPECS, 16, torch.bfloat16) == 2 * 2 * 16 * (2 * 16 + 32)
    cache = numbered()
    held = sum(pool.nbytes for spec in (OWN, WIDE) for pool in cache.layer(spec))
    assert held == N_PAGES * bytes_per_page(SPECS, PAGE, torch.float32)


def test_bytes_of_published_shapes() -> None:
    qwen = [
        replace(OWN, index=i, kv_layer=i, heads=32, kv_heads=8, head_dim=128) for i in range(36)
    ]
    assert bytes_per_page(qwen, 1, torch.bfloat16) == 147_456


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        ([(1, 4)], [0, 1, 2, 3, 1, 5]),
        ([(1, 4), (1, 5)], [0, 1, 2, 3, 1, 1]),
        ([(1, 2), (2, 3)], [0, 1, 1, 2, 4, 5]),
        ([(2, 3), (1, 2)], [0, 1, 1, 2, 4, 5]),
        ([(1, 2), (2, 1)], [0, 2, 1, 3, 4, 5]),
    ],
)
def test_copies_read_before_they_write(
    copies: list[tuple[int, int]], expected: list[float]
) -> None:
    cache = numbered()
    cache.copy_pages([PageCopy(*pair, PAGE) for pair in copies])
    for layer, spec in enumerate((OWN, WIDE)):
        k, v = contents(cache, spec)
        assert k == [e + 100 * layer for e in expected]
        assert v == [-x for x in k]


def test_only_the_beginning_is_copied() -> None:
    cache = numbered()
    for pool in cache.layer(OWN):
        pool[:, :, 1 * PAGE + 3 : 2 * PAGE] = torch.nan
    cache.copy_pages([PageCopy(1, 4, 3), PageCopy(2, 5, 1)])
    for pool, sign in zip(cache.layer(OWN), (1, -1), strict=True):
        for page, source, count in ((4, 1, 3), (5, 2, 1)):
            values = pool[0, :, page * PAGE : (page + 1) * PAGE] * sign
            assert (values[:, :count] == source).all()
            assert (values[:, count:] == page).all()
